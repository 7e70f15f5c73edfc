//! Modules of a kernel: their names, what they depend on, and their bytes whatever they are compressed with.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Duration;

use offleash_sys::process::ask_helper;
use ruzstd::decoding::StreamingDecoder;

use super::error::VmError;

/// Largest module, bytes.
const MAX_MODULE: u64 = 64 << 20;
/// How long unpacking one may take.
const UNPACK_TIMEOUT: Duration = Duration::from_secs(30);
/// What a module says of itself begins so.
const DEPENDS: &[u8] = b"\0depends=";

/// The name of the module in a file: `virtio_net` of `virtio-net.ko.xz`.
pub(super) fn name_of(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    let name = [".ko", ".ko.xz", ".ko.zst", ".ko.gz"]
        .into_iter()
        .find_map(|end| name.strip_suffix(end))?;
    Some(name.replace('-', "_"))
}

/// The bytes of a module, as the kernel loads them.
pub(super) fn read(file: &Path) -> Result<Vec<u8>, VmError> {
    let reading = || VmError::file("reading the module", file);
    let bytes = fs::read(file).map_err(reading())?;
    match file.extension().and_then(|end| end.to_str()) {
        Some("zst") => {
            let decoder = StreamingDecoder::new(bytes.as_slice()).map_err(io::Error::other);
            decoder.and_then(bounded).map_err(reading())
        }
        Some("xz") => by_program("xz", file),
        Some("gz") => by_program("gzip", file),
        _ => Ok(bytes),
    }
}

fn bounded(decoder: impl io::Read) -> io::Result<Vec<u8>> {
    let mut module = Vec::new();
    decoder.take(MAX_MODULE).read_to_end(&mut module)?;
    Ok(module)
}

/// What a program of the system's own makes of a compressed file.
fn by_program(program: &'static str, file: &Path) -> Result<Vec<u8>, VmError> {
    let failed = |said: String| VmError::Helper { program, said };
    let limit = usize::try_from(MAX_MODULE).unwrap_or(usize::MAX);
    match ask_helper(program, &["-dc", "--", &utf8(file)?], &[], limit, UNPACK_TIMEOUT) {
        Ok((true, module)) => Ok(module),
        Ok((false, _)) => Err(failed(format!("it does not unpack `{}`", file.display()))),
        Err(error) => Err(failed(error.to_string())),
    }
}

pub(super) fn utf8(path: &Path) -> Result<String, VmError> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| VmError::file("naming", path)(io::ErrorKind::InvalidInput.into()))
}

/// The names of the modules that one depends on, as it says itself (`depends=` of its section `.modinfo`).
pub(super) fn depends(module: &[u8]) -> Vec<String> {
    let Some(place) = find(module, DEPENDS) else {
        return Vec::new();
    };
    let rest = module.get(place + DEPENDS.len()..).unwrap_or_default();
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&rest[..end]);
    let names = text.split(',').filter(|name| !name.is_empty());
    names.map(|name| name.replace('-', "_")).collect()
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_s_name_and_what_it_depends_on_are_read() {
        for (file, name) in [
            ("a/virtio-net.ko", Some("virtio_net")),
            ("fuse.ko.xz", Some("fuse")),
            ("fuse.ko.zst", Some("fuse")),
            ("modules.dep", None),
        ] {
            assert_eq!(name_of(Path::new(file)).as_deref(), name, "{file}");
        }
        let module = b"\x7fELF..\0license=GPL\0depends=net_failover,virtio-ring\0name=x\0";
        assert_eq!(depends(module), ["net_failover", "virtio_ring"]);
        assert_eq!(depends(b"\0depends=\0"), Vec::<String>::new());
        assert_eq!(depends(b"\0depends="), Vec::<String>::new());
    }
}
