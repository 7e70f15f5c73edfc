//! What a running gateway is told from another thread.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::mpsc::SyncSender;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::spawn_local;

use crate::Reach;
use crate::current::Current;

/// Is told what came of a connection.
pub(crate) type Answer = Box<dyn FnOnce(io::Result<OwnedFd>) + Send>;

/// Is told when an order counts; whoever gave it waits until this is dropped.
pub(crate) type Done = SyncSender<()>;

/// What it is to do.
pub(crate) enum Order {
    /// These rules count from now on.
    Rules { reach: Box<Reach>, done: Done },
    /// The network is closed, or open again.
    Close { is_closed: bool, done: Done },
    /// Somebody wants to connect to a port inside.
    Connect { port: u16, answer: Answer },
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rules { reach, .. } => f.debug_tuple("Rules").field(reach).finish(),
            Self::Close { is_closed, .. } => f.debug_tuple("Close").field(is_closed).finish(),
            Self::Connect { port, .. } => f.debug_tuple("Connect").field(port).finish(),
        }
    }
}

/// Carries out what comes, for as long as somebody may say something.
pub(crate) async fn carry_out(current: Rc<Current>, mut orders: UnboundedReceiver<Order>) {
    while let Some(order) = orders.recv().await {
        match order {
            Order::Rules { reach, done } => {
                current.set_rules(*reach);
                drop(done);
            }
            Order::Close { is_closed, done } => {
                current.close(is_closed);
                drop(done);
            }
            Order::Connect { port, answer } => {
                let shared = current.now();
                spawn_local(async move {
                    let connected = shared.entrances.connect(port).await;
                    answer(connected.and_then(|stream| Ok(stream.into_std()?.into())));
                });
            }
        }
    }
    // Whoever could say something is gone, and ends the gateway in another way.
    std::future::pending::<()>().await;
}
