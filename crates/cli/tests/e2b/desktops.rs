//! E2B's SDKs for desktops, unchanged: the template that they ask for has a real X server and everything else that they call.

use crate::kits::Kit;
use crate::languages::run;
use crate::server::{NO_POOL, Server};
use crate::support::processes::program;
use crate::support::{Site, skip, stderr};

/// What the SDKs call that is of the machine's.
const PROGRAMS: [&str; 12] = [
    "Xvfb",
    "xdpyinfo",
    "xrandr",
    "xdotool",
    "scrot",
    "x11vnc",
    "websockify",
    "xterm",
    "matchbox-window-manager",
    "netstat",
    "pgrep",
    "ps",
];

/// A desktop that is small and answers to the names of XFCE, of which the SDKs start one program and look for three.
const SMALL_XFCE: &str = r#"cd /usr/local/bin
printf '#!/bin/sh\nxfwm4 & xfdesktop & xfce4-session\n' >startxfce4
printf '#!/bin/sh\nmatchbox-window-manager\n' >xfwm4
printf '#!/bin/sh\nsleep infinity\n' >xfdesktop
cp xfdesktop xfce4-session
chmod 755 startxfce4 xfwm4 xfdesktop xfce4-session
mkdir -p /opt && ln -sfn /usr/share/novnc /opt/noVNC"#;

/// One test for both SDKs, because both need the template.
#[test]
fn the_desktop_sdks_see_and_drive_a_screen() {
    if let Some(missing) = PROGRAMS.iter().find(|name| program(name).is_none()) {
        return skip(&format!("`{missing}` is missing"));
    }
    let kits = ["python_desktop", "javascript_desktop"].map(Kit::find);
    if kits.iter().all(Option::is_none) {
        return;
    }
    let site = Site::sharing_templates();
    let built = site
        .offleash(["template", "build", "--name", "desktop", "--run", SMALL_XFCE])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", stderr(&built));
    let server = Server::start_on(site, None, NO_POOL);
    for kit in kits.iter().flatten() {
        run(&server, kit.program(server.site.root(), &["desktop"]));
    }
    server.end();
}
