//! A worker that asked for an interpreter of scripts is handed it.

use std::os::fd::AsFd as _;

use offleash_isolation::error::IsolationError;
use offleash_protocol::encode;
use offleash_sys::socket;

use super::{SimulatedSandbox, running};
use crate::engine::ScriptLanguage;
use crate::interpreters::InterpreterTurn;
use crate::wire::{InterpreterAnswer, ToWorker};

/// Why a worker that kept the machine's root directory is given none: its filter lets it receive no files, and it would be lost.
const NO_EMPTY_ROOT: &str = "there is no interpreter, as a process of yours can have no empty root directory without user \
                             namespaces; `offleash doctor` says what forbids them";

impl SimulatedSandbox {
    /// Looks for the interpreter that a worker asks for.
    pub(super) fn asked_for_interpreter(&mut self, language: ScriptLanguage) -> Result<(), IsolationError> {
        let turn = match self.takes_files {
            true => self.interpreters.ask(language),
            false => InterpreterTurn::NotHere(NO_EMPTY_ROOT.to_owned()),
        };
        self.hand_interpreter(turn)
    }

    /// Answers a worker that waits for an interpreter.
    pub(super) fn hand_interpreter(&mut self, turn: InterpreterTurn) -> Result<(), IsolationError> {
        let file = match turn {
            InterpreterTurn::Later => return Ok(()),
            InterpreterTurn::NotHere(why) => {
                return self.send(&ToWorker::Interpreter(InterpreterAnswer::NotHere { why }));
            }
            InterpreterTurn::Here(file) => file,
        };
        let answer = encode(&ToWorker::Interpreter(InterpreterAnswer::Here));
        let answer = answer.map_err(|error| IsolationError::Guest {
            reason: error.to_string(),
        })?;
        // Whoever has asked has taken all that came before.
        let socket = self.worker.socket.as_fd();
        let is_sent = self.unsent.is_empty()
            && socket::send_now(socket, &answer, &[file.as_fd()]).is_ok_and(|count| count == answer.len());
        match is_sent {
            true => Ok(()),
            false => self.lose(Some("it does not take what it asked for")),
        }
    }

    /// Hands over an interpreter that is there now.
    pub(super) fn tend_interpreter(&mut self) -> Result<(), IsolationError> {
        match self.interpreters.turn().map_err(running("wait for a compiler"))? {
            Some(turn) if !self.is_gone => self.hand_interpreter(turn),
            _ => Ok(()),
        }
    }
}
