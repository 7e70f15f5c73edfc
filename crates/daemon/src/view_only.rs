//! The token of who may look at a desktop and not drive it.

use data_encoding::HEXLOWER;
use ring::hmac;

/// What is signed: tokens for something else would be others.
const PURPOSE: &[u8] = b"offleash: a desktop is looked at";

/// The token that shows a desktop to whoever has it, made of the one that lets them drive it.
///
/// Nothing of the latter can be learnt of it, nothing more is kept, and it is the same after the daemon was started again.
pub fn view_only_token(token: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
    HEXLOWER.encode(hmac::sign(&key, PURPOSE).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_has_one_that_only_looks_and_that_is_another() {
        let (one, other) = (view_only_token("a"), view_only_token("b"));
        assert_eq!(one, view_only_token("a"));
        assert!(one != other && one.len() == 64 && one != view_only_token(&one));
    }
}
