use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};

use proptest::prelude::*;

use super::*;
use crate::tar::testing::{RawHeader, TarBuilder};

/// A directory in which layers are unpacked, beside a file that none of them may touch.
struct Bench {
    directory: tempfile::TempDir,
    layers: Vec<PathBuf>,
    limits: UnpackLimits,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("outside"), "untouched").unwrap();
        Self {
            directory,
            layers: Vec::new(),
            limits: UnpackLimits::default(),
        }
    }

    fn unpack_bytes(&mut self, archive: &[u8], diff_id: ImageDigest) -> Result<LayerReport, LayerRefusal> {
        let number = self.layers.len();
        let path = self.directory.path().join(format!("archive-{number}"));
        fs::write(&path, archive).unwrap();
        let target = self.directory.path().join(format!("layer-{number}"));
        fs::create_dir(&target).unwrap();
        let unpacked = unpack(&UnpackOrder {
            archive: path,
            diff_id,
            target: target.clone(),
            lowers: self.layers.iter().rev().cloned().collect(),
            ownership: LayerOwnership::Flat,
            limits: self.limits,
        });
        self.layers.push(target);
        assert_eq!(
            fs::read_to_string(self.directory.path().join("outside")).unwrap(),
            "untouched"
        );
        unpacked.map_err(|error| error.reason)
    }

    fn unpack(&mut self, tar: TarBuilder) -> Result<LayerReport, LayerRefusal> {
        let bytes = tar.end();
        self.unpack_bytes(&bytes, ImageDigest::of(&bytes))
    }

    fn last(&self, path: &str) -> PathBuf {
        self.layers.last().unwrap().join(path)
    }
}

fn tar() -> TarBuilder {
    TarBuilder::default()
}

fn refused(tar: TarBuilder) -> LayerRefusal {
    Bench::new().unpack(tar).unwrap_err()
}

#[test]
fn a_layer_has_what_its_archive_says() {
    let mut bench = Bench::new();
    let dated = RawHeader::new(b'0', b"bin/tool")
        .size(4)
        .mode(0o755)
        .with(136, b"00000001750\0");
    let layer = tar()
        .directory("./", 0o750)
        .directory("bin/", 0o555)
        .raw(dated, b"tool")
        .hard_link("bin/same", "/bin/tool")
        .symlink("link", "../../outside")
        .raw(RawHeader::new(b'6', b"pipe").mode(0o600), b"")
        .file("implied/deep/file", b"x");
    let report = bench.unpack(layer).unwrap();
    assert_eq!((report.entries, report.bytes), (6, 5));
    let tool = fs::metadata(bench.last("bin/tool")).unwrap();
    assert_eq!((tool.mode() & 0o7777, tool.nlink(), tool.mtime()), (0o755, 2, 1000));
    assert_eq!(fs::read(bench.last("bin/same")).unwrap(), b"tool");
    assert_eq!(fs::metadata(bench.last("bin")).unwrap().mode() & 0o7777, 0o555);
    assert_eq!(fs::metadata(bench.last("")).unwrap().mode() & 0o7777, 0o750);
    assert_eq!(fs::metadata(bench.last("implied/deep")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::read_link(bench.last("link")).unwrap(), Path::new("../../outside"));
    assert!(fs::symlink_metadata(bench.last("pipe")).unwrap().file_type().is_fifo());
    fs::set_permissions(bench.last("bin"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn nothing_leads_out_of_a_layer() {
    for (name, refusal) in [
        ("../outside", LayerRefusal::Escapes),
        ("a/../../outside", LayerRefusal::Escapes),
        ("..", LayerRefusal::Escapes),
    ] {
        assert_eq!(refused(tar().file(name, b"x")), refusal, "{name}");
        assert_eq!(refused(tar().directory(name, 0o755)), refusal, "{name}");
        assert_eq!(refused(tar().symlink(name, "x")), refusal, "{name}");
    }
    for target in ["..", "../..", "/", "../outside", "/etc"] {
        assert_eq!(
            refused(tar().symlink("out", target).file("out/outside", b"x")),
            LayerRefusal::ThroughLink
        );
        assert_eq!(
            refused(tar().symlink("out", target).directory("out/new", 0o755)),
            LayerRefusal::ThroughLink
        );
        assert_eq!(
            refused(tar().symlink("a/out", target).hard_link("x", "a/out/outside")),
            LayerRefusal::ThroughLink
        );
        assert_eq!(
            refused(tar().symlink("a/b", "c").symlink("a/c", target).file("a/b/d/x", b"")),
            LayerRefusal::ThroughLink
        );
    }
    assert_eq!(refused(tar().hard_link("x", "../outside")), LayerRefusal::LinkOutside);
    assert_eq!(refused(tar().hard_link("x", "/../outside")), LayerRefusal::LinkOutside);
    assert_eq!(refused(tar().hard_link("x", "/etc/passwd")), LayerRefusal::LinkMissing);
    assert_eq!(refused(tar().hard_link("x", "x")), LayerRefusal::LinkMissing);
    assert_eq!(
        refused(tar().directory("d", 0o755).hard_link("x", "d")),
        LayerRefusal::LinkToDirectory
    );
}

#[test]
fn a_link_is_replaced_and_not_written_through() {
    let mut bench = Bench::new();
    let layer = tar()
        .symlink("file", "../outside")
        .file("file", b"own")
        .symlink("directory", "..")
        .directory("directory", 0o700)
        .file("directory/outside", b"own")
        .symlink("linked", "../outside")
        .hard_link("again", "linked")
        .file("again", b"own");
    bench.unpack(layer).unwrap();
    assert_eq!(fs::read(bench.last("file")).unwrap(), b"own");
    assert!(fs::symlink_metadata(bench.last("linked")).unwrap().is_symlink());
    assert_eq!(fs::read(bench.last("directory/outside")).unwrap(), b"own");
}

#[test]
fn names_of_any_length_are_bounded() {
    assert_eq!(refused(tar().file(&"n".repeat(5_000), b"")), LayerRefusal::NameTooLong);
    assert_eq!(refused(tar().file(&"n/".repeat(2_500), b"")), LayerRefusal::NameTooLong);
    assert_eq!(
        refused(tar().symlink("a", &"n".repeat(5_000))),
        LayerRefusal::NameTooLong
    );
    let mut bench = Bench::new();
    bench.unpack(tar().file(&("n/".repeat(2_000) + "n"), b"x")).unwrap();
    assert_eq!(
        refused(tar().pax(&[("path", b"a\0b")]).file("x", b"")),
        LayerRefusal::BadName
    );
}

#[test]
fn counts_and_sizes_are_bounded() {
    let mut bench = Bench::new();
    bench.limits.entries = 1_000;
    let many = (0..=1_000).fold(tar(), |tar, number| tar.directory(&format!("d{number}"), 0o755));
    assert_eq!(
        bench.unpack(many).unwrap_err(),
        LayerRefusal::TooManyEntries { limit: 1_000 }
    );
    bench.limits.name_bytes = 10_000;
    let long = (0..=3).fold(tar(), |tar, number| {
        tar.symlink(&format!("l{number}"), &"n".repeat(4_000))
    });
    assert_eq!(
        bench.unpack(long).unwrap_err(),
        LayerRefusal::TooManyNames { limit: 10_000 }
    );
    bench.limits.bytes = 100_000;
    assert_eq!(
        bench.unpack(tar().file("a", &[0; 200_000])).unwrap_err(),
        LayerRefusal::TooLarge { limit: 100_000 }
    );
}

#[test]
fn a_stream_is_judged_by_what_has_come_and_has_to_say_that_it_ends() {
    use std::io::Write as _;
    let streamed = |bytes: Vec<u8>, bytes_of_any_ratio| {
        let bench = Bench::new();
        let [target, none] = ["target", "none"].map(|name| bench.directory.path().join(name));
        fs::create_dir(&target).unwrap();
        fs::create_dir(&none).unwrap();
        let limits = UnpackLimits {
            bytes_of_any_ratio,
            ..bench.limits
        };
        let from = io::Cursor::new(bytes);
        let unpacked = unpack_stream(from, &target, &none, LayerOwnership::Flat, limits);
        unpacked.map(|report| report.bytes).map_err(|error| error.reason)
    };
    let usual = UnpackLimits::default().bytes_of_any_ratio;
    let zeros = tar().file("zeros", &vec![0; 4 << 20]).end();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&zeros).unwrap();
    let gzip = gzip.finish().unwrap();
    assert_eq!(streamed(gzip.clone(), usual), Ok(4 << 20));
    assert_eq!(streamed(gzip, 1 << 20), Err(LayerRefusal::Bomb { ratio: 100 }));
    // Without compression nothing is larger than what has come.
    assert_eq!(streamed(zeros.clone(), 0), Ok(4 << 20));
    // All of its entries are there, and not the block that says so.
    let entries = zeros[..zeros.len() - 1024].to_vec();
    assert_eq!(streamed(entries, usual), Err(LayerRefusal::Truncated));
}

#[test]
fn a_bomb_is_refused_before_it_is_unpacked() {
    use std::io::Write as _;
    let zeros = tar().file("bomb", &vec![0; 20 << 20]).end();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&zeros).unwrap();
    let gzip = gzip.finish().unwrap();
    assert!(zeros.len() / gzip.len() > 900, "it is one");
    let zstd = ruzstd::encoding::compress_to_vec(&zeros[..], ruzstd::encoding::CompressionLevel::Fastest);
    for bomb in [gzip, zstd] {
        let mut bench = Bench::new();
        bench.limits.bytes_of_any_ratio = 1 << 20;
        let refusal = bench.unpack_bytes(&bomb, ImageDigest::of(&zeros)).unwrap_err();
        assert_eq!(refusal, LayerRefusal::Bomb { ratio: 100 });
        let size = fs::metadata(bench.last("bomb")).unwrap().len();
        assert!(size < 4 << 20, "{size}");
        bench.limits = UnpackLimits::default();
        bench.unpack_bytes(&bomb, ImageDigest::of(&zeros)).unwrap();
    }
}

#[test]
fn contents_with_another_digest_are_refused() {
    let bytes = tar().file("a", b"x").end();
    let other = Bench::new().unpack_bytes(&bytes, ImageDigest::of(b"other"));
    assert_eq!(other.unwrap_err(), LayerRefusal::OtherContents);
    // What stands behind the archive counts, too.
    let longer = [bytes.clone(), vec![1; 5000]].concat();
    let other = Bench::new().unpack_bytes(&longer, ImageDigest::of(&bytes));
    assert_eq!(other.unwrap_err(), LayerRefusal::OtherContents);
    Bench::new().unpack_bytes(&longer, ImageDigest::of(&longer)).unwrap();
}

#[test]
fn whiteouts_are_what_overlayfs_knows() {
    let mut bench = Bench::new();
    bench
        .unpack(
            tar()
                .file("gone", b"")
                .file("kept", b"")
                .file(".wh.nothing", b"")
                .file("dir/old", b""),
        )
        .unwrap();
    assert!(
        !bench.last("nothing").exists() && !bench.last(".wh.nothing").exists(),
        "nothing is below"
    );
    let layer = tar()
        .file(".wh.gone", b"")
        .file("kept", b"new")
        .file(".wh.kept", b"")
        .file("dir/.wh..wh..opq", b"")
        .file("dir/new", b"")
        .file(".wh..wh.plnk", b"")
        .file(".wh.replaced", b"")
        .file("replaced/file", b"")
        .file("own/file", b"")
        .file(".wh.own", b"");
    bench.unpack(layer).unwrap();
    let gone = fs::symlink_metadata(bench.last("gone")).unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    assert_eq!(fs::read(bench.last("kept")).unwrap(), b"new");
    for opaque in ["dir", "replaced", "own"] {
        let mut value = [0; 8];
        let length = rustix::fs::getxattr(bench.last(opaque), "user.overlay.opaque", &mut value).unwrap();
        assert_eq!(&value[..length], b"y", "{opaque}");
    }
    assert!(bench.last("own/file").exists() && !bench.last(".wh..wh.plnk").exists());
    for wrong in [".wh.", ".wh..", ".wh...", "dir/.wh...", "../.wh.x", "dir/.wh./x/.wh."] {
        assert!(bench.unpack(tar().file(wrong, b"")).is_err(), "{wrong}");
    }
}

#[test]
fn what_takes_a_directory_s_place_hides_what_was_in_it() {
    let mut bench = Bench::new();
    bench
        .unpack(tar().file("file/old", b"").file("link/deep/old", b"").file("kept", b""))
        .unwrap();
    let layer = tar()
        .file("file", b"now one")
        .file("file/.wh.old", b"")
        .symlink("link", "/nowhere")
        .file("link/.wh.deep", b"")
        .file("link/deep/.wh..wh..opq", b"");
    bench.unpack(layer).unwrap();
    assert_eq!(fs::read(bench.last("file")).unwrap(), b"now one");
    assert_eq!(fs::read_link(bench.last("link")).unwrap(), Path::new("/nowhere"));
    let layer = tar().symlink("link", "kept").file("link/new", b"");
    assert!(
        bench.unpack(layer).is_err(),
        "an entry behind a link that hides nothing"
    );
}

#[test]
fn what_lower_layers_have_is_taken_from_them() {
    let mut bench = Bench::new();
    let lowest = tar()
        .directory("usr", 0o711)
        .directory("usr/lib", 0o700)
        .file("usr/lib/tool", b"tool")
        .symlink("usr/lib/link", "tool")
        .file("hidden/file", b"");
    bench.unpack(lowest).unwrap();
    bench.unpack(tar().file(".wh.hidden", b"")).unwrap();
    bench
        .unpack(tar().hard_link("again", "usr/lib/tool").hard_link("l", "usr/lib/link"))
        .unwrap();
    let (one, other) = (
        fs::metadata(bench.last("again")).unwrap(),
        fs::metadata(bench.last("usr/lib/tool")).unwrap(),
    );
    assert_eq!(one.ino(), other.ino());
    assert_eq!(fs::read(bench.last("again")).unwrap(), b"tool");
    assert!(fs::symlink_metadata(bench.last("l")).unwrap().is_symlink());
    assert_eq!(fs::metadata(bench.last("usr")).unwrap().mode() & 0o7777, 0o711);
    assert_eq!(fs::metadata(bench.last("usr/lib")).unwrap().mode() & 0o7777, 0o700);
    assert_eq!(
        bench.unpack(tar().hard_link("x", "hidden/file")).unwrap_err(),
        LayerRefusal::LinkMissing
    );
}

#[test]
fn what_is_no_file_is_left_out_and_counted() {
    let mut bench = Bench::new();
    let marks: &[(&str, &[u8])] = &[
        ("SCHILY.xattr.user.kept", b"yes"),
        ("SCHILY.xattr.user.overlay.redirect", b"/etc"),
        ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
        ("SCHILY.xattr.security.capability", b"\x01\0\0\x02"),
    ];
    let layer = tar()
        .raw(RawHeader::new(b'3', b"dev/null"), b"")
        .raw(RawHeader::new(b'4', b"dev/sda"), b"")
        .raw(RawHeader::new(b'V', b"label"), b"")
        .raw(RawHeader::new(b'0', b"su").mode(0o4755), b"")
        .raw(RawHeader::new(b'0', b"theirs").owner(33, 33), b"")
        .pax(marks)
        .file("marked", b"");
    let report = bench.unpack(layer).unwrap();
    let expected = LayerReport {
        entries: 3,
        devices: 2,
        other_kinds: 1,
        setuid: 1,
        capabilities: 1,
        attributes: 2,
        flattened: 1,
        ..LayerReport::default()
    };
    assert_eq!(report, expected);
    assert!(!bench.last("dev").exists());
    assert_eq!(fs::metadata(bench.last("su")).unwrap().mode() & 0o7777, 0o755);
    let mut names = vec![0; 500];
    let length = rustix::fs::listxattr(bench.last("marked"), &mut names).unwrap();
    let names = String::from_utf8_lossy(&names[..length]).into_owned();
    assert!(names.contains("user.kept") && !names.contains("overlay"), "{names}");
}

#[test]
fn holes_stay_holes() {
    let mut bench = Bench::new();
    let records: &[(&str, &[u8])] = &[("GNU.sparse.map", b"0,1,1048576,2"), ("GNU.sparse.size", b"4194304")];
    bench.unpack(tar().pax(records).file("sparse", b"abc")).unwrap();
    let found = fs::metadata(bench.last("sparse")).unwrap();
    assert!(found.len() == 4 << 20 && found.blocks() < 100, "{found:?}");
    let contents = fs::read(bench.last("sparse")).unwrap();
    assert_eq!(
        (contents[0], contents[1], &contents[1 << 20..][..3]),
        (b'a', 0, &b"bc\0"[..])
    );
    // A layer above that links to it has it with its holes.
    bench.unpack(tar().hard_link("again", "sparse")).unwrap();
    let found = fs::metadata(bench.last("again")).unwrap();
    assert!(found.len() == 4 << 20 && found.blocks() < 100, "{found:?}");
    assert_eq!(fs::read(bench.last("again")).unwrap(), contents);
}

#[test]
fn a_directory_gives_way_only_when_it_is_empty() {
    let mut bench = Bench::new();
    bench
        .unpack(
            tar()
                .directory("a", 0o755)
                .file("a", b"x")
                .directory("b", 0o755)
                .symlink("b", "a"),
        )
        .unwrap();
    assert_eq!(fs::read(bench.last("a")).unwrap(), b"x");
    assert_eq!(
        refused(tar().file("a/b", b"").file("a", b"")),
        LayerRefusal::ReplacesDirectory
    );
    assert_eq!(
        refused(tar().file("a", b"").file("a/b", b"")),
        LayerRefusal::ThroughFile
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_archive_touches_anything_outside(
        entries in proptest::collection::vec(
            (0_usize..6, "(/|\\./)?(\\.\\./|a/|b/|\\.wh\\.|c/){0,3}(a|b|c|\\.\\.|outside|\\.wh\\.a|\\.wh\\.\\.wh\\.\\.opq)", "(/|\\.\\./|a/){0,3}(a|b|outside|\\.\\.)"),
            1..12,
        )
    ) {
        let mut bench = Bench::new();
        for _ in 0..2 {
            let mut layer = tar();
            for (kind, name, link) in &entries {
                layer = match kind {
                    0 => layer.file(name, b"hostile"),
                    1 => layer.directory(name, 0o755),
                    2 | 3 => layer.symlink(name, link),
                    4 => layer.hard_link(name, link),
                    _ => layer.file(&format!("{name}/{link}"), b"hostile"),
                };
            }
            let _unpacked = bench.unpack(layer);
        }
        let mut names: Vec<_> = fs::read_dir(bench.directory.path()).unwrap().map(|found| found.unwrap().file_name()).collect();
        names.sort();
        prop_assert_eq!(names, ["archive-0", "archive-1", "layer-0", "layer-1", "outside"]);
    }
}

#[test]
fn what_belongs_to_who_unpacked_it_is_not_counted_as_somebody_elses() {
    let mut bench = Bench::new();
    bench
        .unpack(tar().directory("d/", 0o755).file("d/lower", b"x"))
        .unwrap();
    let lower = bench.last("d");
    // As who is not root has it.
    let _given = std::os::unix::fs::chown(&lower, Some(4242), Some(4242));
    let _given = std::os::unix::fs::chown(lower.join("lower"), Some(4242), Some(4242));
    let report = bench
        .unpack(tar().file("d/upper", b"x").hard_link("link", "d/lower"))
        .unwrap();
    assert_eq!(report.flattened, 0);
    let theirs = RawHeader::new(b'0', b"e").owner(1000, 1000);
    assert_eq!(bench.unpack(tar().raw(theirs, b"")).unwrap().flattened, 1);
}
