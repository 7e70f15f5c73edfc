//! Tools that run outside on behalf of code in a sandbox: what is asked for is judged ([`ToolDesk`]), and what passes is
//! made ([`serve()`]).
//!
//! Requests are of whoever lives in the sandbox, and each is hostile until it was judged. What the judge has read is what is
//! passed on, written anew: no second reader can understand it otherwise.

mod answer;
mod arguments;
mod asking;
mod bench;
mod callers;
mod desk;
mod ledger;
mod request;
mod serve;

pub use answer::CallFailure;
pub use asking::{AskNotice, ToolAsker};
pub use bench::{OfferedTool, ToolBench};
pub use callers::client::{ClientNotice, ListeningClient, ToolClients};
pub use desk::{DeskStep, JudgedCall, ToolDesk, ToolSetupError};
pub use serve::{make, serve};
