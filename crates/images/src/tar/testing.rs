//! Archives that are made by hand, hostile ones among them.

/// An archive under construction.
#[derive(Debug, Clone, Default)]
pub(crate) struct TarBuilder(Vec<u8>);

/// A header block.
#[derive(Debug, Clone)]
pub(crate) struct RawHeader(pub(crate) [u8; 512]);

impl RawHeader {
    pub(crate) fn new(flag: u8, name: &[u8]) -> Self {
        let mut header = Self([0; 512]);
        header.put(0, &name[..name.len().min(100)]);
        header.put(100, b"0000644\0");
        header.put(108, b"0000000\0");
        header.put(116, b"0000000\0");
        header.put(136, b"00000000000\0");
        header.put(257, b"ustar\x0000");
        header.0[156] = flag;
        header.size(0)
    }

    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn with(mut self, at: usize, bytes: &[u8]) -> Self {
        self.put(at, bytes);
        self
    }

    pub(crate) fn size(self, size: u64) -> Self {
        self.with(124, format!("{size:011o}\0").as_bytes())
    }

    pub(crate) fn mode(self, mode: u32) -> Self {
        self.with(100, format!("{mode:07o}\0").as_bytes())
    }

    pub(crate) fn owner(self, uid: u32, gid: u32) -> Self {
        self.with(108, format!("{uid:07o}\0").as_bytes())
            .with(116, format!("{gid:07o}\0").as_bytes())
    }

    pub(crate) fn link(self, target: &[u8]) -> Self {
        self.with(157, target)
    }

    /// With a checksum that is right.
    pub(crate) fn sealed(mut self) -> [u8; 512] {
        self.put(148, b"        ");
        let sum: u32 = self.0.iter().map(|byte| u32::from(*byte)).sum();
        self.put(148, format!("{sum:06o}\0 ").as_bytes());
        self.0
    }
}

impl TarBuilder {
    /// A header as it is, and what stands behind it.
    pub(crate) fn raw(mut self, header: RawHeader, contents: &[u8]) -> Self {
        self.0.extend(header.sealed());
        self.0.extend(contents);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &str, contents: &[u8]) -> Self {
        self.long(
            name,
            "",
            RawHeader::new(b'0', name.as_bytes()).size(contents.len() as u64),
            contents,
        )
    }

    pub(crate) fn directory(self, name: &str, mode: u32) -> Self {
        self.long(name, "", RawHeader::new(b'5', name.as_bytes()).mode(mode), b"")
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> Self {
        self.long(name, target, RawHeader::new(b'2', name.as_bytes()), b"")
    }

    pub(crate) fn hard_link(self, name: &str, target: &str) -> Self {
        self.long(name, target, RawHeader::new(b'1', name.as_bytes()), b"")
    }

    /// With GNU's long names where they are needed.
    fn long(mut self, name: &str, link: &str, header: RawHeader, contents: &[u8]) -> Self {
        for (flag, text) in [(b'L', name), (b'K', link)] {
            if text.len() > 100 {
                let long = RawHeader::new(flag, b"././@LongLink").size(text.len() as u64 + 1);
                self = self.raw(long, &[text.as_bytes(), b"\0"].concat());
            }
        }
        let header = if link.len() <= 100 {
            header.link(link.as_bytes())
        } else {
            header
        };
        self.raw(header, contents)
    }

    /// Records of pax before the next entry.
    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut text = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length += 1;
            }
            text.extend(format!("{length} {key}=").bytes());
            text.extend(*value);
            text.push(b'\n');
        }
        self.raw(RawHeader::new(b'x', b"pax").size(text.len() as u64), &text)
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}
