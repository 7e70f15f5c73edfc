//! Signed URLs: leave to read or write one path, made by whoever knows the sandbox's access token.

use data_encoding::BASE64_NOPAD;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// What a signature permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write,
}

/// What was signed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signed<'a> {
    pub(super) path: &'a [u8],
    pub(super) operation: Operation,
    /// Empty for the usual user.
    pub(super) user: &'a str,
    /// Until when, in seconds since 1970; for ever if absent.
    pub(super) expiration: Option<i64>,
}

impl Signed<'_> {
    /// Whether `signature` was made with `token`; takes as long for one that is nearly right.
    pub(super) fn is_signed_by(&self, token: &str, signature: &str) -> bool {
        same(&self.signature(token), signature)
    }

    pub(super) fn signature(&self, token: &str) -> String {
        let mut hash = Sha256::new();
        hash.update(self.path);
        hash.update(match self.operation {
            Operation::Read => ":read:",
            Operation::Write => ":write:",
        });
        hash.update(self.user);
        hash.update(":");
        hash.update(token);
        if let Some(expiration) = self.expiration {
            hash.update(format!(":{expiration}"));
        }
        format!("v1_{}", BASE64_NOPAD.encode(&hash.finalize()))
    }
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

    fn signed(expiration: Option<i64>) -> Signed<'static> {
        Signed {
            path: b"/home/user/a b.txt",
            operation: Operation::Read,
            user: "",
            expiration,
        }
    }

    #[test]
    fn signatures_are_those_of_the_sdk() {
        assert!(signed(None).is_signed_by(TOKEN, SDK_WITHOUT_EXPIRATION));
        assert!(signed(Some(1_700_000_000)).is_signed_by(TOKEN, SDK_WITH_EXPIRATION));
    }

    const SDK_WITHOUT_EXPIRATION: &str = "v1_m19cDbXO/F43G5cx59umbZW/2oYPnQHTX2ja2COKnRs";
    const SDK_WITH_EXPIRATION: &str = "v1_Zb1fHPqtqc4hy46/xswhKkmMyq3sFC8ry211eUZxm6k";

    #[test]
    fn a_signature_is_good_for_what_was_signed_alone() {
        let other = [
            Signed {
                path: b"/home/user/b",
                ..signed(None)
            },
            Signed {
                operation: Operation::Write,
                ..signed(None)
            },
            Signed {
                user: "root",
                ..signed(None)
            },
            signed(Some(1)),
        ];
        for other in other {
            assert!(!other.is_signed_by(TOKEN, SDK_WITHOUT_EXPIRATION), "{other:?}");
        }
        assert!(!signed(None).is_signed_by("other", SDK_WITHOUT_EXPIRATION));
        for wrong in [
            "",
            "v1_",
            &SDK_WITHOUT_EXPIRATION[..20],
            &format!("{SDK_WITHOUT_EXPIRATION}="),
        ] {
            assert!(!signed(None).is_signed_by(TOKEN, wrong), "{wrong:?}");
        }
    }
}
