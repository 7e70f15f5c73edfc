//! WebSockets as Daytona's clients ask for them: which of the words that they offer is answered.

use crate::control::ApiRequest;
use crate::http::answer::ApiRefusal;
use crate::http::websocket::WebSocketRequest;

/// By this a client of a terminal says that it reads how that ended from a message.
pub(super) const EXIT_CONTROL: &str = "X-Daytona-Pty-Exit-Control";
/// What variables of a terminal come behind: they may be secrets, and are never said again.
pub(super) const ENVS: &str = "X-Daytona-Pty-Envs~";

/// How a conversation ends, as WebSockets number it (RFC 6455, section 7.4.1).
pub(super) const NORMAL: u16 = 1000;
pub(super) const REFUSED: u16 = 1008;
pub(super) const WENT_WRONG: u16 = 1011;

/// The WebSocket that a request asks for. A client that offers words is answered one of them, or it would not go on.
///
/// # Errors
/// 426 for a request that asks for none.
pub(super) fn asked_for(asked: &ApiRequest<'_>) -> Result<WebSocketRequest, ApiRefusal> {
    let request = WebSocketRequest::of(asked.parts, asked.client)?;
    let word = answered(request.offered());
    Ok(request.speaking(word.as_deref()))
}

fn answered(offered: &[String]) -> Option<String> {
    let control = offered.iter().find(|word| *word == EXIT_CONTROL);
    let other = || offered.iter().find(|word| !word.starts_with(ENVS));
    control.or_else(other).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_is_answered_and_never_a_secret() {
        let answered = |words: &[&str]| answered(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(answered(&[]), None);
        assert_eq!(answered(&["X-Daytona-Pty-Envs~e30"]), None);
        assert_eq!(
            answered(&["X-Daytona-SDK-Version~1", "b"]).as_deref(),
            Some("X-Daytona-SDK-Version~1")
        );
        let all = ["X-Daytona-Pty-Envs~e30", "X-Daytona-SDK-Version~1", EXIT_CONTROL];
        assert_eq!(answered(&all).as_deref(), Some(EXIT_CONTROL));
    }
}
