//! Certificates in the forms in which others look for them.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};

/// What everybody's key store of authorities has for a password; it guards nothing.
const PASSWORD: &str = "changeit";
/// What a key store of Java begins with, and its version (`sun.security.provider.JavaKeyStore`).
const MAGIC: u32 = 0xfeed_feed;
const VERSION: u32 = 2;
/// The kind of entry that is a certificate to be trusted.
const TRUSTED: u32 = 2;

/// A key store of Java (JKS) with these certificates to be trusted.
pub(crate) fn write<'a>(certificates: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let certificates: Vec<&[u8]> = certificates.collect();
    let mut store = Vec::new();
    store.extend(MAGIC.to_be_bytes());
    store.extend(VERSION.to_be_bytes());
    store.extend(length(certificates.len()));
    for (number, certificate) in certificates.iter().enumerate() {
        store.extend(TRUSTED.to_be_bytes());
        text(&mut store, &format!("authority-{number}"));
        // When it was added, in milliseconds.
        store.extend(0_u64.to_be_bytes());
        text(&mut store, "X.509");
        store.extend(length(certificate.len()));
        store.extend(*certificate);
    }
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    let password: Vec<u8> = PASSWORD.encode_utf16().flat_map(u16::to_be_bytes).collect();
    digest.update(&password);
    digest.update(b"Mighty Aphrodite");
    digest.update(&store);
    store.extend(digest.finish().as_ref());
    store
}

/// Text as Java writes it: its length, and its bytes, which are ASCII here.
fn text(store: &mut Vec<u8>, text: &str) {
    store.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    store.extend(text.as_bytes());
}

fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes()
}

/// The hash by which OpenSSL looks for a certificate whose subject is this common name alone, in small letters
/// (`X509_NAME_hash(3)`).
pub(crate) fn hash_of_common_name(name: &str) -> u32 {
    const COMMON_NAME: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x03];
    let part = |tag: u8, contents: &[u8]| {
        let mut part = vec![tag, u8::try_from(contents.len()).unwrap_or(u8::MAX)];
        part.extend(contents);
        part
    };
    let pair = [&COMMON_NAME[..], &part(0x0c, name.as_bytes())].concat();
    let canonical = part(0x31, &part(0x30, &pair));
    let digest = ring::digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, &canonical);
    let first = digest.as_ref().first_chunk().copied().unwrap_or_default();
    u32::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_hashed_as_openssl_does() {
        // openssl req -x509 -subj "/CN=offleash sandbox" … | openssl x509 -noout -subject_hash
        assert_eq!(format!("{:08x}", hash_of_common_name("offleash sandbox")), "bd095925");
    }

    #[test]
    fn a_key_store_holds_what_it_was_given() {
        let store = write([&b"first"[..], b"second"].into_iter());
        assert_eq!(
            store.get(..12),
            Some(&[0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 2][..])
        );
        let entry = [
            &[0, 0, 0, 2, 0, 11][..],
            b"authority-0",
            &[0; 8],
            &[0, 5],
            b"X.509",
            &[0, 0, 0, 5],
            b"first",
        ]
        .concat();
        assert_eq!(store.get(12..12 + entry.len()), Some(&entry[..]));
        assert_eq!(write(std::iter::empty()).len(), 12 + 20);
    }
}
