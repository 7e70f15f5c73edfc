//! The template that the SDKs for code ask for, built of what its registry has today, and what they make of it.

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::process::Command;

use crate::kits::{Kit, system_python};
use crate::languages::run;
use crate::server::{NO_POOL, Server};
use crate::support::{Site, skip, stderr};

const TEMPLATE: &str = "code-interpreter";
const PACKAGES: &str = "numpy,pandas,matplotlib,scipy,scikit-learn,ipython";
/// What a build of them reaches.
const REGISTRY: [&str; 2] = ["pypi.org", "files.pythonhosted.org"];
/// Names the certificates of authorities, where they are not where TLS looks by itself.
const AUTHORITIES: &str = "SSL_CERT_FILE";

/// One test for both SDKs, because building the template takes most of its time.
#[test]
fn the_sdks_run_cells_with_real_packages() {
    let registry = match Registry::find() {
        Ok(registry) => registry,
        Err(reason) => return skip(&format!("packages for a template cannot be fetched: {reason}")),
    };
    let kits = ["python_code_interpreter", "javascript_code_interpreter"].map(Kit::find);
    if kits.iter().all(Option::is_none) {
        return;
    }
    let site = Site::sharing_templates();
    registry.build(&site);
    let server = Server::start_on(site, None, NO_POOL);
    for kit in kits.iter().flatten() {
        run(&server, kit.program(server.site.root(), &["packages"]));
    }
    server.end();
}

/// How packages are fetched on this machine.
struct Registry {
    /// Where it is; an address that is nobody's in public must be allowed by number.
    addresses: Vec<SocketAddr>,
    authorities: Option<OsString>,
}

impl Registry {
    /// As every program finds it here; or why it is not reached.
    fn find() -> Result<Self, String> {
        let ask = format!(
            "import urllib.request as u; u.urlopen('https://{}/simple/pip/', timeout=30).read(); import pip",
            REGISTRY[0]
        );
        let asked = Command::new(system_python()).args(["-c", &ask]).output();
        let asked = asked.map_err(|error| format!("`python3` does not start: {error}"))?;
        if !asked.status.success() {
            let said = stderr(&asked);
            return Err(said.trim().lines().last().unwrap_or("it said nothing").to_owned());
        }
        let mut addresses = Vec::new();
        for host in REGISTRY {
            let found = (host, 443).to_socket_addrs();
            addresses.extend(found.map_err(|error| format!("`{host}`: {error}"))?);
        }
        let authorities = std::env::var_os(AUTHORITIES);
        Ok(Self { addresses, authorities })
    }

    /// Builds the template as its user does.
    fn build(&self, site: &Site) {
        let mut command = site.offleash(["template", "build", "--name", TEMPLATE, "--pip", PACKAGES]);
        for address in self.addresses.iter().filter(|address| address.is_ipv4()) {
            command.arg("--allow").arg(address.to_string());
        }
        if let Some(authorities) = &self.authorities {
            command.env(AUTHORITIES, authorities).args(["--build-env", AUTHORITIES]);
        }
        let built = command.output().unwrap();
        assert!(built.status.success(), "{}", stderr(&built));
    }
}
