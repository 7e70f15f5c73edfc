//! Signed URLs: leave to read or write one path, made by whoever knows the sandbox's access token.

use data_encoding::BASE64_NOPAD;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// What every signature begins with.
const VERSION: &str = "v1_";

/// What a signature permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpanOperation {
    Read,
    Write,
}

/// What is signed, but for the token and the time.
#[derive(Debug, Clone, Copy)]
pub(super) struct SignedRequest<'a> {
    pub(super) path: &'a [u8],
    pub(super) operation: SpanOperation,
    /// Empty for the usual user.
    pub(super) user: &'a str,
}

impl SignedRequest<'_> {
    /// The hash of all that comes before the token.
    pub(super) fn begun(&self) -> Sha256 {
        let mut hash = Sha256::new();
        hash.update(self.path);
        hash.update(match self.operation {
            SpanOperation::Read => ":read:",
            SpanOperation::Write => ":write:",
        });
        hash.update(self.user);
        hash.update(":");
        hash
    }
}

/// What is signed with `token`, `begun` being what comes before it; good until `expiration`, in seconds since 1970, or for
/// ever.
pub(super) fn signature(begun: Sha256, token: &str, expiration: Option<i64>) -> String {
    let mut hash = begun;
    hash.update(token);
    if let Some(expiration) = expiration {
        hash.update(format!(":{expiration}"));
    }
    format!("{VERSION}{}", BASE64_NOPAD.encode(&hash.finalize()))
}

/// Whether `signature` looks like one.
pub(super) fn is_shaped(signature: &str) -> bool {
    let encoded = signature.strip_prefix(VERSION);
    encoded.is_some_and(|encoded| encoded.len() == BASE64_NOPAD.encode_len(Sha256::output_size()))
}

/// Whether two secrets are the same, in a time that says nothing about where they differ.
pub(super) fn same(expected: &str, given: &str) -> bool {
    expected.as_bytes().ct_eq(given.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Made with `get_signature` of the SDK for Python.
    const TOKEN: &str = "tok";

    const SIGNED: SignedRequest<'static> = SignedRequest {
        path: b"/home/user/a b.txt",
        operation: SpanOperation::Read,
        user: "",
    };

    #[test]
    fn signatures_are_those_of_the_sdk() {
        assert_eq!(signature(SIGNED.begun(), TOKEN, None), SDK_WITHOUT_EXPIRATION);
        assert_eq!(
            signature(SIGNED.begun(), TOKEN, Some(1_700_000_000)),
            SDK_WITH_EXPIRATION
        );
        assert!(is_shaped(SDK_WITHOUT_EXPIRATION));
    }

    const SDK_WITHOUT_EXPIRATION: &str = "v1_m19cDbXO/F43G5cx59umbZW/2oYPnQHTX2ja2COKnRs";
    const SDK_WITH_EXPIRATION: &str = "v1_Zb1fHPqtqc4hy46/xswhKkmMyq3sFC8ry211eUZxm6k";

    #[test]
    fn a_signature_is_good_for_what_was_signed_alone() {
        let other = [
            SignedRequest {
                path: b"/home/user/b",
                ..SIGNED
            },
            SignedRequest {
                operation: SpanOperation::Write,
                ..SIGNED
            },
            SignedRequest { user: "root", ..SIGNED },
        ];
        for other in other {
            assert_ne!(
                signature(other.begun(), TOKEN, None),
                SDK_WITHOUT_EXPIRATION,
                "{other:?}"
            );
        }
        assert_ne!(signature(SIGNED.begun(), TOKEN, Some(1)), SDK_WITHOUT_EXPIRATION);
        assert_ne!(signature(SIGNED.begun(), "other", None), SDK_WITHOUT_EXPIRATION);
        for wrong in [
            "",
            "v1_",
            &SDK_WITHOUT_EXPIRATION[..20],
            &format!("{SDK_WITHOUT_EXPIRATION}="),
        ] {
            assert!(!same(SDK_WITHOUT_EXPIRATION, wrong) && !is_shaped(wrong), "{wrong:?}");
        }
    }
}
