//! Brings a volume and its bucket to the same, one object after the other.
//!
//! Each object is fetched or sent as a whole or not at all, and then written down as common. Who is killed between the two
//! leaves both sides alike; the next one finds that out by comparing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use offleash_core::bucket::{BucketCredentials, BucketSpec, SyncChoice, SyncDirection};
use offleash_core::text::Text;
use offleash_images::RegistrySettings;
use offleash_store::{FileStamp, FoundFiles, HeldVolume, TransferBudget, VolumeError, VolumePath};

use crate::baseline::{Baseline, Common};
use crate::bounds::MAX_OBJECTS;
use crate::client::{BucketClient, Condition, Failed, Listed, PART};
use crate::decide::{Side, Step, step};
use crate::digests::Digests;
use crate::error::{BucketError, ObjectFault};
use crate::key::{KeyMeaning, KeyRefusal, directories, meaning};
use crate::local::{LocalFile, fault};
use crate::report::SyncReport;

/// How often what is common is written down meanwhile.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);

/// What is to be brought to the same, and how.
#[derive(Debug)]
pub struct SyncOrder<'a> {
    /// The volume.
    pub volume: &'a HeldVolume,
    /// By what its bucket is reached.
    pub credentials: Option<BucketCredentials>,
    /// How its server is reached.
    pub settings: &'a RegistrySettings,
    /// Which way, and what of that loses what it has.
    pub choice: SyncChoice,
    /// How much more the volume may have.
    pub room: TransferBudget,
    /// How long somebody is waited for who synchronises it.
    pub wait: Duration,
}

/// What became of it.
#[derive(Debug)]
pub struct SyncOutcome {
    /// What was done, up to a failure.
    pub report: SyncReport,
    /// Why it ended early.
    pub failure: Option<BucketError>,
}

/// Brings a volume and its bucket to the same. The network is waited for by this thread.
pub fn sync(order: SyncOrder<'_>) -> SyncOutcome {
    let mut report = SyncReport::default();
    let failure = run(order, &mut report).err();
    SyncOutcome { report, failure }
}

fn run(order: SyncOrder<'_>, report: &mut SyncReport) -> Result<(), BucketError> {
    let record = order.volume.record();
    let name = record.name.to_string();
    let spec = record.bucket.as_ref();
    let spec = spec.ok_or_else(|| BucketError::NoBucket { name: name.clone() })?;
    let choice = order.choice.check()?;
    if spec.read_only && choice.direction == SyncDirection::Push {
        return Err(BucketError::ReadOnly { name });
    }
    let choice = match spec.read_only {
        true => SyncChoice {
            direction: SyncDirection::Pull,
            ..choice
        },
        false => choice,
    };
    let _alone = order.volume.lock_sync(order.wait)?;
    let client = BucketClient::new(spec, order.credentials, order.settings)?;
    let baseline = open_baseline(order.volume, spec)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(BucketError::Host)?;
    let mut syncing = Syncing {
        volume: order.volume,
        client: &client,
        choice,
        room: order.room,
        baseline,
        saved: Instant::now(),
        report,
    };
    let done = runtime.block_on(syncing.all());
    let saved = syncing.save();
    done.and(saved)
}

fn open_baseline(volume: &HeldVolume, spec: &BucketSpec) -> Result<Baseline, BucketError> {
    Baseline::read(volume.objects_file(), spec).map_err(|source| BucketError::Baseline {
        name: volume.record().name.to_string(),
        source,
    })
}

struct Syncing<'a> {
    volume: &'a HeldVolume,
    client: &'a BucketClient,
    choice: SyncChoice,
    room: TransferBudget,
    baseline: Baseline,
    saved: Instant,
    report: &'a mut SyncReport,
}

/// One object and its file.
struct Pair<'a> {
    name: &'a str,
    path: VolumePath,
    object: Option<&'a Listed>,
    file: Option<FileStamp>,
}

impl Syncing<'_> {
    async fn all(&mut self) -> Result<(), BucketError> {
        let objects = self.objects().await?;
        let files = self.volume.content()?.files(MAX_OBJECTS)?;
        for (path, what) in &files.others {
            self.report.left_out.add(Text::from(path), format!("it is {what}"));
        }
        let named = u64::try_from(files.others.len()).unwrap_or(u64::MAX);
        self.report.left_out.count += files.other_count.saturating_sub(named);
        for name in self.names(&objects, &files) {
            // What is no path was said already.
            let Ok(KeyMeaning::File(path)) = meaning(&name) else {
                self.baseline.objects.remove(&name);
                continue;
            };
            let pair = Pair {
                name: &name,
                object: objects.get(&name),
                file: files.get(path.as_path()).copied(),
                path,
            };
            match self.one(&pair).await {
                Ok(()) => {}
                Err(Failed::Object(fault)) => self.report.failed.add(Text::from(name.as_str()), fault),
                Err(Failed::All(error)) => return Err(error),
            }
            if self.saved.elapsed() >= SAVE_INTERVAL {
                self.save()?;
            }
        }
        Ok(())
    }

    /// The objects that can be files.
    async fn objects(&mut self) -> Result<BTreeMap<String, Listed>, BucketError> {
        let mut found = BTreeMap::new();
        for (name, listed) in self.client.list().await? {
            match meaning(&name) {
                Ok(KeyMeaning::File(_)) => drop(found.insert(name, listed)),
                Ok(KeyMeaning::DirectoryNote) => {}
                Err(refusal) => self.report.left_out.add(Text::from(name.as_str()), refusal),
            }
        }
        let clashing: Vec<String> = {
            let directories = directories(found.keys().map(String::as_str));
            found
                .keys()
                .filter(|name| directories.contains(name.as_str()))
                .cloned()
                .collect()
        };
        for name in clashing {
            found.remove(&name);
            self.baseline.objects.remove(&name);
            self.report
                .left_out
                .add(Text::from(name.as_str()), KeyRefusal::Directory);
        }
        Ok(found)
    }

    /// All names that there are on either side, or were on both.
    fn names(&mut self, objects: &BTreeMap<String, Listed>, files: &FoundFiles) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = objects.keys().cloned().collect();
        for path in files.files.keys() {
            match path.to_str() {
                Some(name) => match meaning(name) {
                    Ok(_) => drop(names.insert(name.to_owned())),
                    Err(refusal) => self.report.left_out.add(Text::from(path), refusal),
                },
                None => self.report.left_out.add(Text::from(path), "its name is not UTF-8"),
            }
        }
        names.extend(self.baseline.objects.keys().cloned());
        names
    }

    async fn one(&mut self, pair: &Pair<'_>) -> Result<(), Failed> {
        let common = self.baseline.objects.get(pair.name).cloned();
        let object = match (pair.object, &common) {
            (None, _) => Side::Absent,
            (Some(listed), Some(common)) if listed.tag == common.tag => Side::Same,
            (Some(_), _) => Side::Other,
        };
        let file = self.side_of_file(pair, common.as_ref())?;
        match step(common.is_some(), object, file, self.choice) {
            Step::Same => self.report.same += 1,
            Step::Forget => drop(self.baseline.objects.remove(pair.name)),
            Step::Wait => self.report.waiting += 1,
            Step::Keep => self.report.kept += 1,
            Step::Conflict => self.conflict(pair),
            Step::Fetch => self.fetch(pair).await?,
            Step::Send => {
                let sent = self.send(pair).await;
                return self.unless_common_anyway(pair, sent).await;
            }
            Step::RemoveFile => self.remove_file(pair)?,
            Step::RemoveObject => self.remove_object(pair).await?,
            Step::Compare => self.compare(pair).await?,
        }
        Ok(())
    }

    /// What the file is, compared with what was common; one whose times alone have changed is read.
    fn side_of_file(&mut self, pair: &Pair<'_>, common: Option<&Common>) -> Result<Side, Failed> {
        let (stamp, common) = match (pair.file, common) {
            (None, _) => return Ok(Side::Absent),
            (Some(_), None) => return Ok(Side::Other),
            (Some(stamp), Some(common)) => (stamp, common),
        };
        if stamp == common.stamp {
            return Ok(Side::Same);
        }
        if stamp.size != common.stamp.size || self.digests(pair, stamp)?.sha256 != common.sha256 {
            return Ok(Side::Other);
        }
        let common = Common {
            stamp,
            ..common.clone()
        };
        self.baseline.objects.insert(pair.name.to_owned(), common);
        Ok(Side::Same)
    }

    fn digests(&self, pair: &Pair<'_>, stamp: FileStamp) -> Result<Digests, Failed> {
        let content = self.volume.content().map_err(BucketError::from)?;
        Ok(LocalFile::open(content, &pair.path, stamp)?.digests()?)
    }

    async fn fetch(&mut self, pair: &Pair<'_>) -> Result<(), Failed> {
        let Some(listed) = pair.object else { return Ok(()) };
        let entries = pair.path.entries(true);
        if listed.size > self.room.bytes || entries > self.room.entries {
            return Err(BucketError::from(self.full()).into());
        }
        let mut attempt = 0;
        let (stamp, digests) = loop {
            match self.fetch_once(pair, listed).await {
                Err(failed) if self.client.tries_again(&failed, &mut attempt).await => {}
                fetched => break fetched?,
            }
        };
        self.room.bytes = self.room.bytes.saturating_sub(listed.size);
        self.room.entries = self.room.entries.saturating_sub(1);
        self.note(pair, &listed.tag, stamp, &digests);
        self.report.fetched += 1;
        self.report.fetched_bytes += listed.size;
        Ok(())
    }

    async fn fetch_once(&self, pair: &Pair<'_>, listed: &Listed) -> Result<(FileStamp, Digests), Failed> {
        let content = self.volume.content().map_err(BucketError::from)?;
        let writer = content.write(pair.path.clone(), true, listed.size, self.full());
        let mut writer = writer.map_err(|error| fault(&error))?;
        let take = |piece: &[u8]| writer.write(piece).map_err(|error| BucketError::from(error).into());
        let digests = self.client.get(pair.name, listed, take).await?;
        let stamp = writer
            .finish_unless_changed(pair.file.as_ref())
            .map_err(|error| fault(&error))?;
        Ok((stamp, digests))
    }

    fn full(&self) -> VolumeError {
        let record = self.volume.record();
        VolumeError::Full {
            name: record.name.to_string(),
            quota: format!(
                "{} in {} files and directories",
                record.quota.bytes, record.quota.inodes
            ),
        }
    }

    async fn send(&mut self, pair: &Pair<'_>) -> Result<(), Failed> {
        let Some(stamp) = pair.file else { return Ok(()) };
        let content = self.volume.content().map_err(BucketError::from)?;
        let mut file = LocalFile::open(content, &pair.path, stamp)?;
        let condition = match pair.object {
            Some(listed) => Condition::Is(&listed.tag),
            None => Condition::Absent,
        };
        let (tag, digests) = if stamp.size > PART {
            self.client.put_in_parts(pair.name, &mut file, condition).await?
        } else {
            let bytes = file.next(usize::try_from(PART).unwrap_or(usize::MAX))?;
            file.check()?;
            let digests = Digests::of(&bytes);
            let tag = self.client.put(pair.name, bytes.into(), &digests, condition).await?;
            (tag, digests)
        };
        self.note(pair, &tag, stamp, &digests);
        self.report.sent += 1;
        self.report.sent_bytes += stamp.size;
        Ok(())
    }

    /// A condition that did not hold may be for what we wrote ourselves: an answer was lost, or who wrote it down was killed.
    async fn unless_common_anyway(&mut self, pair: &Pair<'_>, sent: Result<(), Failed>) -> Result<(), Failed> {
        match sent {
            Err(Failed::Object(ObjectFault::ChangedThere)) => {}
            sent => return sent,
        }
        let now = self.client.object(pair.name).await?;
        let now = Pair {
            name: pair.name,
            path: pair.path.clone(),
            object: now.as_ref(),
            file: pair.file,
        };
        match now.object {
            Some(_) if self.is_common(&now).await? => {
                self.report.same += 1;
                Ok(())
            }
            _ => {
                self.conflict(pair);
                Ok(())
            }
        }
    }

    async fn compare(&mut self, pair: &Pair<'_>) -> Result<(), Failed> {
        if self.is_common(pair).await? {
            self.report.same += 1;
            return Ok(());
        }
        match (self.choice.overwrite, self.choice.pulls()) {
            (true, true) => self.fetch(pair).await,
            (true, false) => {
                let sent = self.send(pair).await;
                self.unless_common_anyway(pair, sent).await
            }
            (false, _) => {
                self.conflict(pair);
                Ok(())
            }
        }
    }

    /// Whether object and file have the same contents; it is written down then.
    async fn is_common(&mut self, pair: &Pair<'_>) -> Result<bool, Failed> {
        let (Some(listed), Some(stamp)) = (pair.object, pair.file) else {
            return Ok(false);
        };
        if listed.size != stamp.size {
            return Ok(false);
        }
        let here = self.digests(pair, stamp)?;
        let is_common = match here.are_of_tag(&listed.tag) {
            Some(true) => true,
            // A version that is no digest may look like one.
            _ => self.client.get(pair.name, listed, |_| Ok(())).await?.sha256 == here.sha256,
        };
        if is_common {
            self.note(pair, &listed.tag, stamp, &here);
        }
        Ok(is_common)
    }

    fn remove_file(&mut self, pair: &Pair<'_>) -> Result<(), Failed> {
        let Some(stamp) = pair.file else { return Ok(()) };
        let content = self.volume.content().map_err(BucketError::from)?;
        content
            .remove_unchanged(&pair.path, &stamp)
            .map_err(|error| fault(&error))?;
        self.baseline.objects.remove(pair.name);
        self.report.removed_here += 1;
        Ok(())
    }

    async fn remove_object(&mut self, pair: &Pair<'_>) -> Result<(), Failed> {
        let Some(listed) = pair.object else { return Ok(()) };
        self.client.delete(pair.name, &listed.tag).await?;
        self.baseline.objects.remove(pair.name);
        self.report.removed_there += 1;
        Ok(())
    }

    fn conflict(&mut self, pair: &Pair<'_>) {
        let why = match (pair.object, pair.file) {
            (Some(_), None) => "it was changed in the bucket and removed in the volume",
            (None, Some(_)) => "it was changed in the volume and removed in the bucket",
            _ => "it was changed in the volume and in the bucket",
        };
        self.report.conflicts.add(Text::from(pair.name), why);
    }

    fn note(&mut self, pair: &Pair<'_>, tag: &str, stamp: FileStamp, digests: &Digests) {
        let common = Common {
            tag: tag.to_owned(),
            stamp,
            sha256: digests.sha256.clone(),
        };
        self.baseline.objects.insert(pair.name.to_owned(), common);
    }

    fn save(&mut self) -> Result<(), BucketError> {
        self.saved = Instant::now();
        self.baseline.write().map_err(|source| BucketError::Baseline {
            name: self.volume.record().name.to_string(),
            source,
        })
    }
}
