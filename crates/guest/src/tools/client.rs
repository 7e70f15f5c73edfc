//! The command: says what it was called with, waits, and writes what it is told.

use alloc::vec::Vec;
use core::ffi::CStr;

use offleash_protocol::tools::{CommandAnswer, LENGTH, MAX_ANSWER, MAX_REQUEST, SOCKET};
use offleash_sys::spawn;
use rustix::event::Timespec;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// The argument that stands for standard input.
const FROM_INPUT: &[u8] = b"-";
/// Exit code where the tool was not called.
const FAILED: u8 = 125;
/// How often it is tried to connect: the worker may not listen yet when the sandbox's first command is there.
const MAX_TRIES: usize = 200;
/// How long between.
const TRY_AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// Runs the program; answers its exit code.
pub(crate) fn run(tool: &[u8], argv: &[&CStr]) -> u8 {
    match call(tool, argv) {
        Ok(status) => status,
        Err(why) => {
            write_all(2, &[tool, b": ", why, b"\n"].concat());
            FAILED
        }
    }
}

fn call(tool: &[u8], argv: &[&CStr]) -> Result<u8, &'static [u8]> {
    let mut request = Vec::from(&b"\0\0\0\0{\"form\":\"command\",\"tool\":"[..]);
    put_string(&mut request, tool)?;
    request.extend_from_slice(b",\"arguments\":[");
    let mut wants_input = false;
    for (index, word) in argv.iter().skip(1).map(|word| word.to_bytes()).enumerate() {
        if index > 0 {
            request.push(b',');
        }
        wants_input |= word == FROM_INPUT;
        put_string(&mut request, word)?;
    }
    request.push(b']');
    if wants_input {
        request.extend_from_slice(b",\"input\":");
        put_string(&mut request, &read_input()?)?;
    }
    request.push(b'}');
    let length = request.len() - LENGTH;
    if length > MAX_REQUEST {
        return Err(b"what it is called with is longer than 256 KiB");
    }
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    request
        .get_mut(..LENGTH)
        .iter_mut()
        .for_each(|place| place.copy_from_slice(&length));
    let socket = connect().map_err(|_| &b"no tools are offered here"[..])?;
    send_all(&socket, &request).map_err(|_| &b"the call was not taken"[..])?;
    let answer = receive(&socket).ok_or(&b"there was no answer"[..])?;
    let answer = CommandAnswer::of(&answer).ok_or(&b"the answer makes no sense"[..])?;
    write_all(1, answer.stdout);
    write_all(2, answer.stderr);
    Ok(answer.status)
}

/// Appends a string of JSON.
fn put_string(json: &mut Vec<u8>, text: &[u8]) -> Result<(), &'static [u8]> {
    core::str::from_utf8(text).map_err(|_| &b"what it is called with is not UTF-8"[..])?;
    json.push(b'"');
    for byte in text {
        match byte {
            b'"' | b'\\' => json.extend_from_slice(&[b'\\', *byte]),
            0..=0x1f => {
                let digit = |value: u8| b"0123456789abcdef".get(usize::from(value)).copied().unwrap_or(b'0');
                json.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
            }
            _ => json.push(*byte),
        }
    }
    json.push(b'"');
    Ok(())
}

fn read_input() -> Result<Vec<u8>, &'static [u8]> {
    let failed = |_| &b"reading standard input failed"[..];
    let input = spawn::copy_descriptor(0).map_err(failed)?;
    let mut bytes = Vec::new();
    let mut piece = alloc::vec![0; 64 * 1024];
    loop {
        match rustix::io::read(&input, &mut piece[..]) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
        if bytes.len() > MAX_REQUEST {
            return Err(b"what it is called with is longer than 256 KiB");
        }
    }
}

fn connect() -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new_abstract_name(SOCKET)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    for _ in 1..MAX_TRIES {
        match rustix::net::connect(&socket, &address) {
            Err(Errno::CONNREFUSED | Errno::AGAIN) => {
                // Cut short, it is tried sooner.
                let _ = rustix::thread::nanosleep(&TRY_AGAIN);
            }
            other => return other.map(|()| socket),
        }
    }
    rustix::net::connect(&socket, &address).map(|()| socket)
}

fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn receive(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut answer = Vec::new();
    let mut piece = alloc::vec![0; 64 * 1024];
    loop {
        match rustix::net::recv(socket, &mut piece[..], RecvFlags::empty()) {
            Ok((0, _)) => return None,
            Ok((count, _)) => answer.extend_from_slice(&piece[..count]),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
        let Some((length, body)) = answer.split_first_chunk::<LENGTH>() else {
            continue;
        };
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        if length > MAX_ANSWER {
            return None;
        }
        if body.len() >= length {
            return body.get(..length).map(Vec::from);
        }
    }
}

/// Writes to standard output or error. Whoever closed it does not want to know.
fn write_all(stream: i32, mut bytes: &[u8]) {
    let Ok(stream) = spawn::copy_descriptor(stream) else {
        return;
    };
    while !bytes.is_empty() {
        match rustix::io::write(&stream, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
