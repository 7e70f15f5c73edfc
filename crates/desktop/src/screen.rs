//! Looks at a screen over the Remote Framebuffer Protocol (RFC 6143), as one more viewer that never touches anything.
//!
//! Its server is hostile: sizes are bounded before there is memory for them, rectangles are within the screen, and what has
//! begun must end in time. Only that nothing changes may last. All of it is read where other sandboxes are served, too, so
//! what shows nothing comes at most a thousand times a second.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::time::{sleep, timeout};

use crate::error::DesktopError;
use crate::launch::MAX_PIXELS;
use crate::picture::Picture;

/// How long a server may take to let us in, and to send what it began.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest name of a screen, and text of a clipboard, that is read past, bytes.
const MAX_NAME: usize = 4096;
const MAX_CLIPBOARD: usize = 1 << 20;

/// After a message that shows nothing.
const PAUSE: Duration = Duration::from_millis(1);

const VERSION: &[u8; 12] = b"RFB 003.008\n";
/// Any viewer may come in.
const SECURITY_NONE: u8 = 1;
/// Others may look at the same time.
const SHARED: u8 = 1;
/// Pixels as they are, and screens that change their size.
const ENCODING_RAW: i32 = 0;
const ENCODING_SIZE: i32 = -223;
/// Four bytes a pixel, blue, green, red and nothing.
const PIXEL_FORMAT: [u8; 16] = [32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 16, 8, 0, 0, 0, 0];
const BYTES: usize = 4;

/// A viewer of a screen.
#[derive(Debug)]
pub struct ScreenObserver<S> {
    stream: BufReader<S>,
    width: usize,
    height: usize,
    rgb: Vec<u8>,
    has_picture: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ScreenObserver<S> {
    /// Begins to look, at the other end of `stream`.
    ///
    /// # Errors
    /// `Closed`, `Malformed`, `Locked`, `Timeout`.
    pub async fn open(stream: S) -> Result<Self, DesktopError> {
        let opened = timeout(OPEN_TIMEOUT, Self::let_in(BufReader::new(stream)));
        opened.await.unwrap_or(Err(DesktopError::Timeout))
    }

    async fn let_in(mut stream: BufReader<S>) -> Result<Self, DesktopError> {
        let mut version = [0; VERSION.len()];
        stream.read_exact(&mut version).await?;
        if !version.starts_with(b"RFB 003.") {
            return Err(malformed("its version"));
        }
        stream.write_all(VERSION).await?;
        let mut kinds = vec![0; usize::from(stream.read_u8().await?)];
        stream.read_exact(&mut kinds).await?;
        match (kinds.is_empty(), kinds.contains(&SECURITY_NONE)) {
            (true, _) => return Err(malformed("that it serves nobody")),
            (false, false) => return Err(DesktopError::Locked),
            (false, true) => stream.write_all(&[SECURITY_NONE]).await?,
        }
        if stream.read_u32().await? != 0 {
            return Err(DesktopError::Locked);
        }
        stream.write_all(&[SHARED]).await?;
        let (width, height) = (stream.read_u16().await?, stream.read_u16().await?);
        skip(&mut stream, PIXEL_FORMAT.len()).await?;
        let name = length(stream.read_u32().await?, MAX_NAME, "its name")?;
        skip(&mut stream, name).await?;
        let mut told = vec![0, 0, 0, 0];
        told.extend(PIXEL_FORMAT);
        told.extend([2, 0, 0, 2]);
        told.extend(ENCODING_RAW.to_be_bytes());
        told.extend(ENCODING_SIZE.to_be_bytes());
        stream.write_all(&told).await?;
        let mut observer = Self {
            stream,
            width: 0,
            height: 0,
            rgb: Vec::new(),
            has_picture: false,
        };
        observer.resize(width, height)?;
        Ok(observer)
    }

    fn resize(&mut self, width: u16, height: u16) -> Result<(), DesktopError> {
        let (width, height) = (usize::from(width), usize::from(height));
        if width == 0 || height == 0 || width * height > MAX_PIXELS {
            return Err(malformed("the size of its screen"));
        }
        if (self.width, self.height) != (width, height) {
            (self.width, self.height) = (width, height);
            self.rgb = vec![0; width * height * 3];
        }
        self.has_picture = false;
        Ok(())
    }

    /// Waits until the screen shows something else than it did; at first, until it shows anything.
    ///
    /// # Errors
    /// `Closed`, `Malformed`; `Timeout` for what was begun and does not end.
    pub async fn changed(&mut self) -> Result<(), DesktopError> {
        loop {
            self.ask().await?;
            let mut is_changed = false;
            let mut is_answered = false;
            while !is_answered {
                // For as long as nothing changes there is nothing to be told.
                let kind = self.stream.read_u8().await?;
                let taken = timeout(MESSAGE_TIMEOUT, self.message(kind));
                let rectangles = taken.await.unwrap_or(Err(DesktopError::Timeout))?;
                is_answered = rectangles.is_some();
                is_changed |= rectangles.is_some_and(|count| count > 0);
                if !is_changed {
                    sleep(PAUSE).await;
                }
            }
            if is_changed {
                self.has_picture = true;
                return Ok(());
            }
        }
    }

    async fn ask(&mut self) -> Result<(), DesktopError> {
        let mut asked = vec![3, u8::from(self.has_picture), 0, 0, 0, 0];
        for side in [self.width, self.height] {
            // It was made of one.
            asked.extend(u16::try_from(side).unwrap_or(u16::MAX).to_be_bytes());
        }
        let written = timeout(MESSAGE_TIMEOUT, self.stream.write_all(&asked)).await;
        Ok(written.map_err(|_| DesktopError::Timeout)??)
    }

    /// Takes in a message; answers how many rectangles of the screen it had, if it was an update.
    async fn message(&mut self, kind: u8) -> Result<Option<u16>, DesktopError> {
        match kind {
            0 => return Ok(Some(self.update().await?)),
            1 => {
                skip(&mut self.stream, 3).await?;
                let colours = usize::from(self.stream.read_u16().await?);
                skip(&mut self.stream, colours * 6).await?;
            }
            2 => {}
            3 => {
                skip(&mut self.stream, 3).await?;
                let text = length(self.stream.read_u32().await?, MAX_CLIPBOARD, "its clipboard")?;
                skip(&mut self.stream, text).await?;
            }
            _ => return Err(malformed("the kind of a message")),
        }
        Ok(None)
    }

    /// Takes in an update; answers how many rectangles of the screen as it is now it had.
    async fn update(&mut self) -> Result<u16, DesktopError> {
        skip(&mut self.stream, 1).await?;
        let count = self.stream.read_u16().await?;
        let (mut shown, mut pixels) = (0, 0);
        let mut has_size = false;
        for _ in 0..count {
            let mut place = [0; 4];
            for side in &mut place {
                *side = self.stream.read_u16().await?;
            }
            let [left, top, width, height] = place;
            match self.stream.read_i32().await? {
                ENCODING_RAW => {
                    pixels += usize::from(width) * usize::from(height);
                    if pixels > 2 * MAX_PIXELS {
                        return Err(malformed("the size of an update"));
                    }
                    self.raw(place.map(usize::from)).await?;
                    shown += 1;
                }
                ENCODING_SIZE if (left, top, has_size) == (0, 0, false) => {
                    self.resize(width, height)?;
                    (shown, has_size) = (0, true);
                }
                _ => return Err(malformed("how a rectangle is written")),
            }
        }
        Ok(shown)
    }

    async fn raw(&mut self, [left, top, width, height]: [usize; 4]) -> Result<(), DesktopError> {
        if width == 0 || height == 0 || left + width > self.width || top + height > self.height {
            return Err(malformed("where a rectangle is"));
        }
        let mut row = vec![0; width * BYTES];
        for y in top..top + height {
            self.stream.read_exact(&mut row).await?;
            let start = (y * self.width + left) * 3;
            let line = &mut self.rgb[start..start + width * 3];
            for (shown, told) in line.chunks_exact_mut(3).zip(row.chunks_exact(BYTES)) {
                shown.copy_from_slice(&[told[2], told[1], told[0]]);
            }
        }
        Ok(())
    }

    /// What the screen shows; `None` before it showed anything.
    pub fn picture(&self) -> Option<Picture> {
        let picture = self.has_picture.then(|| self.rgb.clone());
        Picture::new(self.width, self.height, picture?)
    }
}

fn malformed(what: &'static str) -> DesktopError {
    DesktopError::Malformed { what }
}

fn length(told: u32, most: usize, what: &'static str) -> Result<usize, DesktopError> {
    let length = usize::try_from(told).ok().filter(|length| *length <= most);
    length.ok_or_else(|| malformed(what))
}

async fn skip(stream: &mut (impl AsyncRead + Unpin), count: usize) -> Result<(), DesktopError> {
    let mut left = stream.take(count as u64);
    let read = tokio::io::copy(&mut left, &mut tokio::io::sink()).await?;
    match read == count as u64 {
        true => Ok(()),
        false => Err(DesktopError::Closed(std::io::ErrorKind::UnexpectedEof.into())),
    }
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
