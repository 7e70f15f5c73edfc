//! What a driver says of the state that it is to save or to load.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use super::{DriverNews, DriverProcess, number};
use crate::contexts::ContextInfo;
use crate::error::ContextError;
use crate::id::HexId;
use crate::language::Language;
use crate::obstacle::{CarryObstacle, NotSaved};
use crate::process::{ProcessError, ProcessHost};
use crate::protocol::{FrameKind, HostFrame};
use crate::state::SaveOptions;

/// How many obstacles are of use.
const MAX_OBSTACLES: usize = 100;
/// Characters of a reason.
const MAX_REASON: usize = 600;
/// What the driver may take beyond the time that it was given.
const GRACE: Duration = Duration::from_secs(5);

/// Why a driver did not save.
#[derive(Debug)]
pub(crate) enum SaveError {
    Obstacles(Vec<CarryObstacle>),
    Failed(NotSaved, String),
}

impl SaveError {
    /// As the error of that context.
    pub(crate) fn of(self, info: &ContextInfo) -> ContextError {
        let id = info.id.clone();
        match self {
            Self::Obstacles(obstacles) => ContextError::Unsavable {
                id,
                language: info.language,
                obstacles,
            },
            Self::Failed(why, reason) => ContextError::NotSaved { id, why, reason },
        }
    }
}

/// What a driver answers.
enum DriverAnswer {
    Saved,
    Loaded(u64),
    Refused { why: String, reason: String },
}

impl<P: ProcessHost> DriverProcess<P> {
    /// Has it write what its cells left to a file; answers what it left out.
    pub(crate) async fn save(
        &mut self,
        language: Language,
        options: &SaveOptions,
        path: &str,
    ) -> Result<Vec<CarryObstacle>, SaveError> {
        let failed = |reason: &str| SaveError::Failed(NotSaved::Other, reason.to_owned());
        let id = HexId::random().map_err(|error| failed(&error.to_string()))?;
        let save = HostFrame::Save {
            id,
            seconds: options.time.as_secs().max(1),
            bytes: options.bytes,
            skip: options.skip,
            path,
        };
        let asked = self.ask(language, save, id);
        match timeout(options.time + GRACE, asked).await {
            Ok(Ok((DriverAnswer::Saved, left_out))) => Ok(left_out),
            Ok(Ok((DriverAnswer::Refused { why, .. }, obstacles))) if why == "obstacles" && !obstacles.is_empty() => {
                Err(SaveError::Obstacles(obstacles))
            }
            Ok(Ok((DriverAnswer::Refused { why, reason }, _))) => Err(SaveError::Failed(NotSaved::parse(&why), reason)),
            Ok(Ok((DriverAnswer::Loaded(_), _))) => Err(failed("its process answered something else")),
            Ok(Err(reason)) => Err(failed(&reason)),
            Err(_) => Err(SaveError::Failed(
                NotSaved::Time,
                "its process does not answer".to_owned(),
            )),
        }
    }

    /// Has it read what cells of another left; answers how many those were, and what it could not have.
    pub(crate) async fn load(
        &mut self,
        language: Language,
        path: &str,
        patience: Duration,
    ) -> Result<(u64, Vec<CarryObstacle>), String> {
        let id = HexId::random().map_err(|error| error.to_string())?;
        match timeout(patience, self.ask(language, HostFrame::Load(id, path), id)).await {
            Ok(Ok((DriverAnswer::Loaded(count), left_out))) => Ok((count, left_out)),
            Ok(Ok((DriverAnswer::Refused { reason, .. }, _))) => Err(reason),
            Ok(Ok((DriverAnswer::Saved, _))) => Err("its process answered something else".to_owned()),
            Ok(Err(reason)) => Err(reason),
            Err(_) => Err(format!("it took longer than {} seconds", patience.as_secs())),
        }
    }

    async fn ask(
        &mut self,
        language: Language,
        question: HostFrame<'_>,
        id: HexId,
    ) -> Result<(DriverAnswer, Vec<CarryObstacle>), String> {
        let part = language.state_source().map(HostFrame::Part);
        let frames: Result<Vec<_>, _> = part.iter().chain([&question]).map(HostFrame::encode).collect();
        let mut feeding = pin!(self.feed(frames.map_err(|error| error.to_string())?));
        let mut is_fed = false;
        let mut obstacles = Vec::new();
        loop {
            let news = tokio::select! {
                given = &mut feeding, if !is_fed => match given {
                    // Why it ended comes with its output.
                    Ok(()) | Err(ProcessError::Ended) => {
                        is_fed = true;
                        continue;
                    }
                    Err(error) => return Err(error.to_string()),
                },
                news = self.next() => news,
            };
            let frame = match news {
                DriverNews::Frame(frame) => frame,
                DriverNews::Over(death) => return Err(death.to_string()),
            };
            if frame.id != id {
                continue;
            }
            let answer = match frame.kind {
                FrameKind::Obstacle => {
                    obstacles.extend(CarryObstacle::parse(&frame.payload).filter(|_| obstacles.len() < MAX_OBSTACLES));
                    continue;
                }
                FrameKind::Saved => DriverAnswer::Saved,
                FrameKind::Loaded => DriverAnswer::Loaded(number(&frame.payload).ok_or("a number of cells is none")?),
                FrameKind::Refused => refused(&frame.payload),
                _ => continue,
            };
            return Ok((answer, obstacles));
        }
    }
}

fn refused(payload: &[u8]) -> DriverAnswer {
    let text = String::from_utf8_lossy(payload);
    let (why, reason) = text.split_once('\n').unwrap_or(("other", &text));
    DriverAnswer::Refused {
        why: why.chars().take(MAX_REASON).collect(),
        reason: reason.chars().take(MAX_REASON).collect(),
    }
}
