//! The exchange of keys (RFC 4253, section 7): `curve25519-sha256` (RFC 8731), signed with our Ed25519 key.
//!
//! Strict where the client is (OpenSSH's PROTOCOL, section 1.10): nothing else is said before keys are there, and numbers of
//! packets begin anew with them.

use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::io::{AsyncRead, AsyncWrite};
use zeroize::Zeroizing;

use crate::error::SshError;
use crate::host_key::{ALGORITHM, HostKey};
use crate::packet::{PacketReader, PacketWriter};
use crate::wire::{WireReader, WireWriter, message};

const EXCHANGES: [&str; 2] = ["curve25519-sha256", "curve25519-sha256@libssh.org"];
const STRICT_CLIENT: &str = "kex-strict-c-v00@openssh.com";
const STRICT_SERVER: &str = "kex-strict-s-v00@openssh.com";
const CIPHER: &str = "chacha20-poly1305@openssh.com";
/// Said because something has to be; what seals packets authenticates them.
const MAC: &str = "hmac-sha2-256";

/// How both sides called themselves, and what was agreed on before.
#[derive(Debug)]
pub(crate) struct KexSession {
    pub(crate) client_name: Vec<u8>,
    pub(crate) server_name: &'static str,
    /// The hash of the first exchange.
    id: Option<Vec<u8>>,
    strict: bool,
}

/// What a client says of itself to begin an exchange.
#[derive(Debug)]
struct ClientOffer {
    strict: bool,
    /// Whether the next packet is a guess that came to nothing.
    skips_next: bool,
}

impl KexSession {
    pub(crate) fn new(client_name: Vec<u8>, server_name: &'static str) -> Self {
        Self {
            client_name,
            server_name,
            id: None,
            strict: false,
        }
    }

    /// Carries an exchange out; `offer` is the client's `KEXINIT` if it came already. Both sides have other keys afterwards.
    pub(crate) async fn exchange<R, W>(
        &mut self,
        offer: Option<Vec<u8>>,
        key: &HostKey,
        reader: &mut PacketReader<R>,
        writer: &mut PacketWriter<W>,
    ) -> Result<(), SshError>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let is_first = self.id.is_none();
        let ours = our_offer(is_first)?;
        writer.send(&ours).await?;
        let theirs = match offer {
            Some(offer) => offer,
            None => self.expect(message::KEXINIT, true, reader).await?,
        };
        let offered = client_offer(&theirs)?;
        if is_first {
            self.strict = offered.strict;
        }
        if offered.skips_next {
            self.next(reader).await?;
        }
        let init = self.expect(message::KEX_ECDH_INIT, !self.strict, reader).await?;
        let mut fields = WireReader::new(&init);
        let (_, their_point) = (fields.byte()?, fields.string()?);

        let random = SystemRandom::new();
        let private = EphemeralPrivateKey::generate(&X25519, &random).map_err(|_| SshError::Key)?;
        let our_point = private.compute_public_key().map_err(|_| SshError::Key)?;
        let their_key = UnparsedPublicKey::new(&X25519, their_point);
        // A point that leads to nothing secret is refused.
        let shared = agree_ephemeral(private, &their_key, |shared| {
            Zeroizing::new(WireWriter::default().mpint(shared).0)
        });
        let shared = shared.map_err(|_| SshError::Protocol("its half of the key is none"))?;

        let blob = key.blob();
        let hashed = WireWriter::default()
            .string(&self.client_name)
            .string(self.server_name)
            .string(&theirs)
            .string(&ours)
            .string(&blob)
            .string(their_point)
            .string(our_point.as_ref())
            .raw(&shared);
        let hash = digest(&SHA256, &hashed.0).as_ref().to_vec();
        let reply = WireWriter::message(message::KEX_ECDH_REPLY)
            .string(&blob)
            .string(our_point.as_ref())
            .string(key.sign(&hash));
        writer.send(&reply.0).await?;
        writer.send(&[message::NEWKEYS]).await?;
        let id = self.id.get_or_insert_with(|| hash.clone()).clone();
        writer.rekey(&derived(&shared, &hash, b'D', &id), self.strict);
        self.expect(message::NEWKEYS, !self.strict, reader).await?;
        reader.rekey(&derived(&shared, &hash, b'C', &id), self.strict);
        Ok(())
    }

    async fn next<R: AsyncRead + Unpin>(&self, reader: &mut PacketReader<R>) -> Result<Vec<u8>, SshError> {
        let next = reader.next().await?;
        next.ok_or_else(|| SshError::Stream(std::io::ErrorKind::UnexpectedEof.into()))
    }

    /// The next packet, which has to be of the kind `wanted`; those that say nothing are passed over where that is `lenient`.
    async fn expect<R: AsyncRead + Unpin>(
        &self,
        wanted: u8,
        lenient: bool,
        reader: &mut PacketReader<R>,
    ) -> Result<Vec<u8>, SshError> {
        loop {
            let packet = self.next(reader).await?;
            match packet.first() {
                Some(number) if *number == wanted => return Ok(packet),
                Some(&message::IGNORE | &message::DEBUG | &message::UNIMPLEMENTED) if lenient => {}
                Some(&message::DISCONNECT) => return Err(SshError::Protocol("it hung up while keys were exchanged")),
                _ => return Err(SshError::Protocol("something else came while keys were exchanged")),
            }
        }
    }
}

fn our_offer(is_first: bool) -> Result<Vec<u8>, SshError> {
    let mut cookie = [0; 16];
    SystemRandom::new().fill(&mut cookie).map_err(|_| SshError::Key)?;
    let exchanges = match is_first {
        true => format!("{},{STRICT_SERVER}", EXCHANGES.join(",")),
        false => EXCHANGES.join(","),
    };
    let mut offer = WireWriter::message(message::KEXINIT)
        .raw(&cookie)
        .string(exchanges)
        .string(ALGORITHM);
    for list in [CIPHER, CIPHER, MAC, MAC, "none", "none", "", ""] {
        offer = offer.string(list);
    }
    Ok(offer.boolean(false).number(0).0)
}

fn client_offer(offer: &[u8]) -> Result<ClientOffer, SshError> {
    let mut fields = WireReader::new(offer);
    fields.byte()?;
    fields.take(16)?;
    let exchanges = fields.text()?;
    let keys = fields.text()?;
    let ciphers = [fields.text()?, fields.text()?];
    let _macs = [fields.text()?, fields.text()?];
    let compressions = [fields.text()?, fields.text()?];
    let _languages = [fields.text()?, fields.text()?];
    let follows = fields.boolean()?;
    let has = |list: &str, name: &str| list.split(',').any(|one| one == name);
    let missing = |what, ours| Err(SshError::NoneInCommon { what, ours });
    let Some(chosen) = exchanges.split(',').find(|one| EXCHANGES.contains(one)) else {
        return missing("exchange of keys", EXCHANGES[0]);
    };
    if !has(keys, ALGORITHM) {
        return missing("kind of host key", ALGORITHM);
    }
    if !ciphers.iter().all(|list| has(list, CIPHER)) {
        return missing("cipher", CIPHER);
    }
    if !compressions.iter().all(|list| has(list, "none")) {
        return missing("compression", "none");
    }
    let guessed = (exchanges.split(',').next(), keys.split(',').next());
    Ok(ClientOffer {
        strict: has(exchanges, STRICT_CLIENT),
        skips_next: follows && guessed != (Some(chosen), Some(ALGORITHM)),
    })
}

/// A key of 64 bytes (section 7.2).
fn derived(shared: &[u8], hash: &[u8], letter: u8, id: &[u8]) -> Zeroizing<[u8; 64]> {
    let first = digest(&SHA256, &Zeroizing::new([shared, hash, &[letter], id].concat()));
    let second = digest(&SHA256, &Zeroizing::new([shared, hash, first.as_ref()].concat()));
    let mut key = Zeroizing::new([0; 64]);
    let (low, high) = key.split_at_mut(32);
    low.copy_from_slice(first.as_ref());
    high.copy_from_slice(second.as_ref());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(exchanges: &str, cipher: &str, follows: bool) -> Vec<u8> {
        let mut offer = WireWriter::message(message::KEXINIT)
            .raw(&[0; 16])
            .string(exchanges)
            .string(ALGORITHM);
        for list in [cipher, cipher, MAC, MAC, "none,zlib", "none", "", ""] {
            offer = offer.string(list);
        }
        offer.boolean(follows).number(0).0
    }

    #[test]
    fn a_client_needs_what_is_spoken_here() {
        let good = format!("sntrup761x25519-sha512,{},{STRICT_CLIENT}", EXCHANGES[0]);
        let read = client_offer(&offer(&good, CIPHER, true)).unwrap();
        assert!(read.strict && read.skips_next);
        let read = client_offer(&offer(EXCHANGES[1], CIPHER, true)).unwrap();
        assert!(!read.strict && !read.skips_next);
        let refused = client_offer(&offer("diffie-hellman-group14-sha1", CIPHER, false));
        assert!(matches!(refused, Err(SshError::NoneInCommon { .. })));
        let refused = client_offer(&offer(EXCHANGES[0], "aes256-ctr", false));
        assert!(matches!(refused, Err(SshError::NoneInCommon { .. })));
        assert!(client_offer(&offer(EXCHANGES[0], CIPHER, false)[..40]).is_err());
    }

    /// The other side of an exchange; answers the hash, after the server's signature was verified.
    async fn exchange_as_client<S: AsyncRead + AsyncWrite + Unpin>(
        first: &[&[u8]],
        reader: &mut PacketReader<tokio::io::ReadHalf<S>>,
        writer: &mut PacketWriter<tokio::io::WriteHalf<S>>,
    ) -> Option<Vec<u8>> {
        let ours = offer(&format!("{},{STRICT_CLIENT}", EXCHANGES[0]), CIPHER, false);
        writer.send(&ours).await.ok()?;
        let theirs = reader.next().await.ok()??;
        for packet in first {
            writer.send(packet).await.ok()?;
        }
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).unwrap();
        let our_point = private.compute_public_key().unwrap();
        let init = WireWriter::message(message::KEX_ECDH_INIT).string(our_point.as_ref());
        writer.send(&init.0).await.ok()?;
        let reply = reader.next().await.ok()??;
        let mut fields = WireReader::new(&reply);
        assert_eq!(fields.byte().unwrap(), message::KEX_ECDH_REPLY);
        let (blob, their_point, signed) = (
            fields.string().unwrap(),
            fields.string().unwrap(),
            fields.string().unwrap(),
        );
        let their_key = UnparsedPublicKey::new(&X25519, their_point);
        let shared = agree_ephemeral(private, &their_key, |shared| WireWriter::default().mpint(shared).0).unwrap();
        let hashed = WireWriter::default()
            .string("SSH-2.0-client")
            .string("SSH-2.0-server")
            .string(&ours)
            .string(&theirs);
        let hashed = hashed
            .string(blob)
            .string(our_point.as_ref())
            .string(their_point)
            .raw(&shared);
        let hash = digest(&SHA256, &hashed.0).as_ref().to_vec();
        let mut key = WireReader::new(blob);
        let mut signature = WireReader::new(signed);
        assert_eq!((key.text().unwrap(), signature.text().unwrap()), (ALGORITHM, ALGORITHM));
        let key = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, key.string().unwrap());
        key.verify(&hash, signature.string().unwrap()).unwrap();
        assert_eq!(reader.next().await.ok()??, [message::NEWKEYS]);
        reader.rekey(&derived(&shared, &hash, b'D', &hash), true);
        writer.send(&[message::NEWKEYS]).await.ok()?;
        writer.rekey(&derived(&shared, &hash, b'C', &hash), true);
        Some(hash)
    }

    /// What becomes of an exchange in which a client says `first` before its half of the key.
    async fn exchanged(first: &[&[u8]]) -> Result<Option<Vec<u8>>, SshError> {
        let directory = tempfile::tempdir().unwrap();
        let key = HostKey::kept(&directory.path().join("key")).unwrap();
        let (server, client) = tokio::io::duplex(64 << 10);
        let (reading, writing) = tokio::io::split(server);
        let (mut reader, mut writer) = (PacketReader::new(reading), PacketWriter::new(writing));
        let (reading, writing) = tokio::io::split(client);
        let (mut their_reader, mut their_writer) = (PacketReader::new(reading), PacketWriter::new(writing));
        let mut kex = KexSession::new(b"SSH-2.0-client".to_vec(), "SSH-2.0-server");
        let serving = async {
            kex.exchange(None, &key, &mut reader, &mut writer).await?;
            writer.send(b"from the server").await?;
            reader.next().await
        };
        let asking = async {
            exchange_as_client(first, &mut their_reader, &mut their_writer).await?;
            assert_eq!(their_reader.next().await.unwrap().unwrap(), b"from the server");
            their_writer.send(b"from the client").await.ok()
        };
        tokio::select! {
            // What was refused is not answered.
            heard = serving => heard,
            Some(()) = asking => reader.next().await,
        }
    }

    #[test]
    fn both_sides_have_the_same_keys_and_nothing_is_said_before() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            assert_eq!(exchanged(&[]).await.unwrap().unwrap(), b"from the client");
            // A packet that would be passed over shifts the numbers of those that follow (CVE-2023-48795).
            let shifted = exchanged(&[&[message::IGNORE, 0, 0, 0, 0]]).await;
            assert!(matches!(shifted, Err(SshError::Protocol(_))), "{shifted:?}");
        });
    }
}
