//! Orders to a gateway that serves, and what it has to tell that has time.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::spawn_local;
use tokio::time::sleep;

use super::{Keys, Ties, new_rules};
use crate::current::Current;
use crate::journal::Journal;
use crate::link::Link;
use crate::questions::{Notice, Questions};
use crate::wire::frames::Received;
use crate::wire::{Order, Report};

/// How long what is for the record alone may take to be told; what happens meanwhile is told with it.
const GATHERED: Duration = Duration::from_millis(50);
/// How long to wait for a supervisor that takes its time.
const TURN: Duration = Duration::from_millis(5);

/// Carries out what comes, until it is to end: by an order, or because the supervisor is gone or says what is no order.
pub(crate) async fn carry_out(link: &Link, current: Option<Rc<Current>>, ties: &mut Ties) -> io::Result<()> {
    let Ties {
        questions,
        keys,
        incoming,
        ..
    } = ties;
    let socket = watched(link.clone())?;
    loop {
        while let Some((order, _)) = incoming.next()? {
            match order {
                Order::End => return Ok(()),
                order => give(order, link, current.as_ref(), questions, keys),
            }
        }
        let received = socket.async_io(Interest::READABLE, |socket| match incoming.receive(socket.as_fd())? {
            Received::Nothing => Err(io::ErrorKind::WouldBlock.into()),
            received => Ok(received),
        });
        if received.await? == Received::End {
            return Ok(());
        }
    }
}

fn give(order: Order, link: &Link, current: Option<&Rc<Current>>, questions: &Questions, keys: &mut Keys) {
    match (order, current) {
        (Order::MakeAuthority, _) => link.send(&Report::Authority(keys.certificate())),
        (Order::Answer { question, approval }, _) => questions.answer(question, approval),
        (Order::Rules { number, reach }, Some(current)) => {
            let mut reach = *reach;
            // Without an authority, what would have to be opened is not made.
            let trust = reach.roots.take().and_then(|roots| keys.trust(roots).ok());
            current.set_rules(new_rules(reach, trust));
            link.send(&Report::Done { number });
        }
        (Order::Close { number, is_closed }, Some(current)) => {
            current.close(is_closed);
            link.send(&Report::Done { number });
        }
        (Order::Connect { number, port }, Some(current)) => {
            let (shared, link) = (current.now(), link.clone());
            spawn_local(async move {
                let connected = shared.entrances.connect(port).await;
                let connected = connected.and_then(|stream| Ok(OwnedFd::from(stream.into_std()?)));
                let error = connected.as_ref().err().map(Into::into);
                link.send_with(&Report::Connected { number, error }, connected.ok());
            });
        }
        _ => {}
    }
}

/// Passes on what has time: what is for the record alone.
pub(crate) async fn tell_in_time(link: Link, journal: Journal) {
    loop {
        link.woken().await;
        sleep(GATHERED).await;
        journal.pass_on();
        while !link.send_rest() {
            sleep(TURN).await;
        }
    }
}

/// Passes on what is asked.
///
/// # Errors
/// When the event loop does not take the descriptor.
pub(crate) async fn tell_questions(link: Link, questions: Questions) -> io::Result<()> {
    let wake = watched(questions.as_fd().try_clone_to_owned()?)?;
    loop {
        // Before they are taken: what comes meanwhile is heard of anew.
        wake.readable().await?.clear_ready();
        for notice in questions.take() {
            link.send(&match notice {
                Notice::Asked(question) => Report::Asked(question),
                Notice::Withdrawn(number) => Report::Withdrawn(number),
            });
        }
    }
}

/// Something that can be waited for until it can be read.
#[expect(
    deprecated,
    reason = "its successor asks for a promise that no descriptor but one is answered; both kinds here own that one"
)]
fn watched<T: AsRawFd>(readable: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(readable, Interest::READABLE)
}
