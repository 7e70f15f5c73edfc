//! Hellos, built byte by byte.

/// The parts of a hello, each of which a test may spoil.
#[derive(Debug, Clone)]
pub(super) struct Hello {
    pub(super) version: [u8; 2],
    pub(super) session_id: Vec<u8>,
    pub(super) suites: Vec<u8>,
    pub(super) compression: Vec<u8>,
    pub(super) extensions: Option<Vec<u8>>,
    pub(super) tail: Vec<u8>,
}

impl Default for Hello {
    fn default() -> Self {
        Self {
            version: [3, 3],
            session_id: vec![7; 32],
            suites: vec![0x13, 0x01, 0x13, 0x02],
            compression: vec![0],
            extensions: Some(Vec::new()),
            tail: Vec::new(),
        }
    }
}

impl Hello {
    pub(super) fn named(name: &str) -> Self {
        Self::default().with(0, &server_name(name.as_bytes()))
    }

    /// With one extension more.
    pub(super) fn with(mut self, kind: u16, content: &[u8]) -> Self {
        let extensions = self.extensions.get_or_insert_default();
        extensions.extend(extension(kind, content));
        self
    }

    pub(super) fn body(&self) -> Vec<u8> {
        let extensions = self.extensions.as_deref().map(vector16).unwrap_or_default();
        [
            &self.version[..],
            &[0x55; 32],
            &vector8(&self.session_id),
            &vector16(&self.suites),
            &vector8(&self.compression),
            &extensions,
            &self.tail,
        ]
        .concat()
    }

    pub(super) fn message(&self) -> Vec<u8> {
        message(&self.body())
    }

    pub(super) fn record(&self) -> Vec<u8> {
        record(&self.message())
    }
}

pub(super) fn message(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1], &length[1..], body].concat()
}

pub(super) fn record(fragment: &[u8]) -> Vec<u8> {
    [&[22, 3, 1], &vector16(fragment)[..]].concat()
}

/// Records of `size` bytes and a last one of what is left.
pub(super) fn in_records(message: &[u8], size: usize) -> Vec<u8> {
    // Long messages in short records would be too many of them: the rest comes in one.
    let mut fragments: Vec<&[u8]> = message.chunks(size).collect();
    let mut out = Vec::new();
    if fragments.len() > super::MAX_RECORDS {
        let (head, tail) = message.split_at(size * (super::MAX_RECORDS - 1));
        fragments = head.chunks(size).chain([tail]).collect();
    }
    fragments.iter().for_each(|fragment| out.extend(record(fragment)));
    out
}

pub(super) fn vector8(content: &[u8]) -> Vec<u8> {
    [&[u8::try_from(content.len()).unwrap()], content].concat()
}

pub(super) fn vector16(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    [&length[..], content].concat()
}

pub(super) fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &vector16(content)].concat()
}

/// The content of a `server_name` extension with one host name.
pub(super) fn server_name(name: &[u8]) -> Vec<u8> {
    vector16(&[&[0], &vector16(name)[..]].concat())
}
