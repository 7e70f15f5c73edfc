//! Whom the kernel kills first when the machine runs out of memory (THREATS R10).

use std::io;

use rustix::fs::{CWD, Mode, OFlags, openat};

/// How much more than others the kernel should prefer a sandbox.
pub(crate) const OOM_SCORE: i16 = 500;
/// And among the processes of a sandbox those that run in it, to its first one, with which all of it ends: by a tenth of
/// the memory that it may use.
pub(crate) const COMMAND_OOM_SCORE: i16 = OOM_SCORE + 100;

/// Has the kernel prefer a process, by its name in `/proc`, and all that it starts from now on.
///
/// One that is preferred more already is left as it is. Written with `CAP_SYS_RESOURCE`, the score is also the lowest that
/// it and its children can set themselves (`__set_oom_adj` in `fs/proc/base.c`).
///
/// # Errors
/// `EACCES` for a process of another user, or one that is not dumpable.
pub(crate) fn prefer_to_kill(process: &str, score: i16) -> io::Result<()> {
    let path = format!("/proc/{process}/oom_score_adj");
    let file = openat(CWD, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = [0; 8];
    let length = rustix::io::read(&file, &mut text[..])?;
    let now = std::str::from_utf8(&text[..length])
        .ok()
        .and_then(|text| text.trim().parse::<i16>().ok());
    if now.is_none_or(|now| now < score) {
        rustix::io::write(&file, score.to_string().as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_and_what_it_starts_are_preferred_but_not_less_than_before() {
        for (before, after) in [("200", "500"), ("700", "700")] {
            let script =
                format!("echo {before} > /proc/self/oom_score_adj; echo; read go; cat /proc/self/oom_score_adj");
            #[expect(clippy::disallowed_methods, reason = "a test needs a process to prefer")]
            let mut child = Command::new("/bin/sh")
                .args(["-c", &script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut output = io::BufReader::new(child.stdout.take().unwrap());
            io::BufRead::read_line(&mut output, &mut String::new()).unwrap();
            prefer_to_kill(&child.id().to_string(), OOM_SCORE).unwrap();
            drop(child.stdin.take());
            let mut found = String::new();
            io::Read::read_to_string(&mut output, &mut found).unwrap();
            child.wait().unwrap();
            assert_eq!(found.trim(), after);
        }
    }
}
