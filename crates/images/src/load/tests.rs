use std::fs;
use std::io::{self, Write as _};

use flate2::write::GzEncoder;

use super::archive::StagedArchive;
use super::*;
use crate::tar::testing::TarBuilder;
use crate::unpack::LayerRefusal;

struct Bench {
    _directory: tempfile::TempDir,
    store: ImageStore,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::at(&directory.path().join("images")).unwrap();
        Self {
            _directory: directory,
            store,
        }
    }

    /// Why an archive is refused, of which nothing stays.
    fn refused(&self, bytes: Vec<u8>, limits: ArchiveLimits) -> ImageError {
        let read = StagedArchive::read(&self.store, Box::new(io::Cursor::new(bytes)), limits);
        let Err(error) = read else { panic!("it was taken") };
        let partial = self.store.path.join("partial");
        assert_eq!(fs::read_dir(partial).unwrap().count(), 0, "something was left");
        error
    }
}

fn reason(error: &ImageError) -> &LayerRefusal {
    match error {
        ImageError::Unloadable { source } => &source.reason,
        other => panic!("{other}"),
    }
}

#[test]
fn what_a_file_may_hold_is_bounded() {
    let bench = Bench::new();
    let small = ArchiveLimits {
        entries: 3,
        names: 2_000,
        bytes: 1 << 20,
        bytes_of_any_ratio: 100_000,
    };
    let directories = (0..4).fold(TarBuilder::default(), |tar, number| {
        tar.directory(&format!("d{number}/"), 0o755)
    });
    let error = bench.refused(directories.end(), small);
    assert_eq!(reason(&error), &LayerRefusal::TooManyEntries { limit: 3 });
    let names = TarBuilder::default().symlink(&"n".repeat(1_500), &"t".repeat(600));
    assert_eq!(
        reason(&bench.refused(names.end(), small)),
        &LayerRefusal::TooManyNames { limit: 2_000 }
    );
    let large = TarBuilder::default().file("a", &vec![7; 2 << 20]);
    assert_eq!(
        reason(&bench.refused(large.end(), small)),
        &LayerRefusal::TooLarge { limit: 1 << 20 }
    );
    let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&TarBuilder::default().file("a", &vec![0; 500_000]).end())
        .unwrap();
    let bomb = gzip.finish().unwrap();
    assert_eq!(reason(&bench.refused(bomb, small)), &LayerRefusal::Bomb { ratio: 100 });
}

#[test]
fn of_a_file_that_breaks_off_nothing_stays() {
    let bench = Bench::new();
    let whole = TarBuilder::default()
        .file("one", b"whole")
        .file("two", &vec![1; 9_000])
        .end();
    let error = bench.refused(whole[..5_000].to_vec(), ArchiveLimits::default());
    assert_eq!(reason(&error), &LayerRefusal::Truncated);
}

#[test]
fn what_is_no_archive_is_told_so() {
    let bench = Bench::new();
    for text in [&b"root:x:0:0:root:/root:/bin/bash\n".repeat(40)[..], b"short"] {
        let error = bench.refused(text.to_vec(), ArchiveLimits::default());
        assert_eq!(error.to_string(), "the file is malformed: it is no tar archive");
    }
}

#[test]
fn more_images_than_are_taken_are_refused_and_not_left_out() {
    let bench = Bench::new();
    let config = r#"{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[]}}"#;
    let config = config.replace("amd64", offleash_core::processor::ImagePlatform::OURS.architecture);
    let one = r#"{"Config":"c.json","RepoTags":["a:1"],"Layers":[]}"#;
    let many = format!("[{}]", vec![one; MAX_IMAGES + 1].join(","));
    let names = (0..=MAX_IMAGES)
        .map(|number| format!("\"a:{number}\""))
        .collect::<Vec<_>>();
    let named = format!(
        r#"[{{"Config":"c.json","RepoTags":[{}],"Layers":[]}}]"#,
        names.join(",")
    );
    for manifest in [many, named] {
        let file = TarBuilder::default()
            .file("c.json", config.as_bytes())
            .file("manifest.json", manifest.as_bytes());
        let source: Box<dyn Read> = Box::new(io::Cursor::new(file.end()));
        let mut parts = StagedArchive::read(&bench.store, source, ArchiveLimits::default()).unwrap();
        let error = bench.store.load_saved(&mut parts).err().unwrap();
        assert!(error.to_string().contains("more than 100"), "{error}");
    }
}
