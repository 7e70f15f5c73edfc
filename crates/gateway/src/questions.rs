//! Where the gateway's questions go, and the answers come from: another thread, which must never wait for either.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use offleash_core::approval::{ApprovalAnswer, ApprovalQuestion};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

use crate::order_socket::OrderSocket;

/// What is told to whoever answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// This is to be answered.
    Asked(ApprovalQuestion),
    /// No answer is needed any more to the question of this number.
    Withdrawn(u64),
}

/// The questions of a gateway. At most one is open at any time; its descriptor is readable while there are notices.
#[derive(Debug, Clone)]
pub struct Questions(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    notices: VecDeque<Notice>,
    open: Option<(u64, oneshot::Sender<ApprovalAnswer>)>,
    asked: u64,
    /// Who is told answers to the questions of another process.
    answers: Option<OrderSocket>,
}

/// The most notices that wait for somebody to take them; a gateway has one open question at a time.
const MAX_NOTICES: usize = 1024;

impl Questions {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Shared {
            wake,
            line: Mutex::default(),
        })))
    }

    /// Those of another process, whose answers go to `answers`.
    pub(crate) fn of_another(answers: OrderSocket) -> io::Result<Self> {
        let questions = Self::new()?;
        questions.line().answers = Some(answers);
        Ok(questions)
    }

    /// Passes on what another process says.
    pub(crate) fn notice(&self, notice: Notice) {
        let mut line = self.line();
        if line.notices.len() < MAX_NOTICES {
            line.notices.push_back(notice);
        }
        drop(line);
        self.wake();
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What there is to know since the last time.
    pub fn take(&self) -> Vec<Notice> {
        let mut count = [0; 8];
        // It fails when nothing was written, and then there is nothing to be cleared.
        let _cleared = rustix::io::read(&self.0.wake, &mut count);
        self.line().notices.drain(..).collect()
    }

    /// Answers the question of this number, if it is still open.
    pub fn answer(&self, id: u64, approval: ApprovalAnswer) {
        let mut line = self.line();
        if let Some(answers) = &line.answers {
            let answers = answers.clone();
            drop(line);
            return answers.answer(id, approval);
        }
        if let Some((_, waiting)) = line.open.take_if(|(open, _)| *open == id) {
            // The one who asked may be gone with the gateway.
            let _told = waiting.send(approval);
        }
    }

    /// Opens a question; `question` is told its number.
    pub(crate) fn open(
        &self,
        question: impl FnOnce(u64) -> ApprovalQuestion,
    ) -> (u64, oneshot::Receiver<ApprovalAnswer>) {
        let (waiting, answer) = oneshot::channel();
        let mut line = self.line();
        line.asked += 1;
        let id = line.asked;
        line.open = Some((id, waiting));
        line.notices.push_back(Notice::Asked(question(id)));
        drop(line);
        self.wake();
        (id, answer)
    }

    /// Closes the question of this number without an answer.
    pub(crate) fn withdraw(&self, id: u64) {
        let mut line = self.line();
        line.open.take_if(|(open, _)| *open == id);
        line.notices.push_back(Notice::Withdrawn(id));
        drop(line);
        self.wake();
    }

    fn wake(&self) {
        // It fails only when the count is full, and then it is readable.
        let _woken = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Questions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }
}
