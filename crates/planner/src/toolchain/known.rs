//! The toolchains that have a name, and where each keeps what.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::ToolchainParts;
use super::version;
use crate::host::PlanningHost;
use crate::toolchain_names::TOOLCHAIN_NAMES;

/// What became of looking for a toolchain.
pub(super) enum ToolchainSearch {
    /// It is there.
    Found(ToolchainParts),
    /// It is nowhere it could be.
    Missing { name: &'static str, looked: Vec<PathBuf> },
}

/// Where a toolchain is looked for.
struct SearchPlaces<'a> {
    host: &'a PlanningHost,
    workspace: Option<&'a Path>,
    looked: Vec<PathBuf>,
}

/// Looks for a toolchain by name; `None` when there is no such name. `cargo` answers to `rustup`, too.
pub(super) fn find(name: &OsStr, host: &PlanningHost, workspace: Option<&Path>) -> Option<ToolchainSearch> {
    let name = if name == "rustup" { OsStr::new("cargo") } else { name };
    let name = TOOLCHAIN_NAMES.into_iter().find(|known| name == *known)?;
    let mut places = SearchPlaces {
        host,
        workspace,
        looked: Vec::new(),
    };
    let found = match name {
        "pyenv" => pyenv(&mut places),
        "nvm" => nvm(&mut places),
        "uv" => uv(&mut places),
        "cargo" => cargo(&mut places),
        "conda" => conda(&mut places),
        "asdf" => asdf(&mut places),
        "mise" => mise(&mut places),
        "volta" => volta(&mut places),
        "go" => go(&mut places),
        "deno" => simple(&mut places, "DENO_INSTALL", ".deno"),
        _ => simple(&mut places, "BUN_INSTALL", ".bun"),
    };
    Some(found.map_or(
        ToolchainSearch::Missing {
            name,
            looked: places.looked,
        },
        ToolchainSearch::Found,
    ))
}

impl SearchPlaces<'_> {
    fn variable(&self, name: &str) -> Option<PathBuf> {
        self.host
            .variable(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    }

    fn in_home(&self, path: &str) -> Option<PathBuf> {
        Some(self.host.home.as_ref()?.join(path))
    }

    /// The directory that a variable names, or else the one in the home directory, if it is there.
    fn root(&mut self, variable: &str, in_home: &str) -> Option<PathBuf> {
        let root = self
            .variable(variable)
            .filter(|path| path.is_absolute())
            .or_else(|| self.in_home(in_home))?;
        self.first_of([root])
    }

    fn first_of(&mut self, candidates: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
        for candidate in candidates {
            if candidate.is_dir() {
                return Some(candidate);
            }
            self.looked.push(candidate);
        }
        None
    }
}

/// Shims are scripts that ask pyenv at every start; the versions' own directories are direct, and come first.
fn pyenv(places: &mut SearchPlaces<'_>) -> Option<ToolchainParts> {
    let root = places.root("PYENV_ROOT", ".pyenv")?;
    let mut programs: Vec<PathBuf> =
        version::of_pyenv(&root, places.variable("PYENV_VERSION").as_deref(), places.workspace)
            .into_iter()
            .map(|version| root.join("versions").join(version).join("bin"))
            .collect();
    programs.extend([root.join("bin"), root.join("shims")]);
    Some(ToolchainParts {
        granted: vec![root.clone()],
        programs,
        variables: vec![("PYENV_ROOT", root)],
        ..ToolchainParts::default()
    })
}

fn nvm(places: &mut SearchPlaces<'_>) -> Option<ToolchainParts> {
    let root = match places.root("NVM_DIR", ".nvm") {
        Some(root) => root,
        None => {
            let config = places
                .variable("XDG_CONFIG_HOME")
                .or_else(|| places.in_home(".config"))?;
            places.first_of([config.join("nvm")])?
        }
    };
    let versions = root.join("versions/node");
    let wanted = version::of_nvm(&root, places.workspace);
    let chosen = version::matching(&versions, &wanted).or_else(|| version::newest(&versions, ""));
    let programs = chosen
        .into_iter()
        .map(|version| versions.join(version).join("bin"))
        .collect();
    Some(ToolchainParts {
        granted: vec![root.clone()],
        programs,
        variables: vec![("NVM_DIR", root)],
        ..ToolchainParts::default()
    })
}

fn uv(places: &mut SearchPlaces<'_>) -> Option<ToolchainParts> {
    let data = places
        .variable("XDG_DATA_HOME")
        .or_else(|| places.in_home(".local/share"))?
        .join("uv");
    let bin = places
        .variable("XDG_BIN_HOME")
        .or_else(|| places.in_home(".local/bin"))?;
    let pythons = places
        .variable("UV_PYTHON_INSTALL_DIR")
        .unwrap_or_else(|| data.join("python"));
    let program = bin.join("uv");
    if !program.is_file() && !data.is_dir() {
        places.looked.extend([program, data]);
        return None;
    }
    let newest = version::newest(&pythons, "cpython-").map(|version| pythons.join(version).join("bin"));
    Some(ToolchainParts {
        granted: vec![data, pythons.clone(), program, bin.join("uvx")],
        programs: std::iter::once(bin).chain(newest).collect(),
        variables: vec![("UV_PYTHON_INSTALL_DIR", pythons)],
        ..ToolchainParts::default()
    })
}

fn cargo(places: &mut SearchPlaces<'_>) -> Option<ToolchainParts> {
    let cargo = places.root("CARGO_HOME", ".cargo")?;
    let rustup = places.root("RUSTUP_HOME", ".rustup");
    let mut variables = vec![("CARGO_HOME", cargo.clone())];
    variables.extend(rustup.clone().map(|path| ("RUSTUP_HOME", path)));
    Some(ToolchainParts {
        hidden: vec![cargo.join("credentials.toml"), cargo.join("credentials")],
        programs: vec![cargo.join("bin")],
        granted: std::iter::once(cargo).chain(rustup).collect(),
        variables,
    })
}

fn conda(places: &mut SearchPlaces<'_>) -> Option<ToolchainParts> {
    let active = places.variable("CONDA_PREFIX");
    // `CONDA_EXE` is BASE/bin/conda; environments outside the base are granted as well.
    let by_program = places
        .variable("CONDA_EXE")
        .and_then(|path| Some(path.parent()?.parent()?.to_path_buf()));
    let usual = [
        "miniconda3",
        "miniforge3",
        "mambaforge",
        "anaconda3",
        ".conda/miniconda3",
    ];
    let candidates: Vec<PathBuf> = by_program
        .into_iter()
        .chain(usual.into_iter().filter_map(|name| places.in_home(name)))
        .chain(["/opt/conda".into(), "/opt/miniconda3".into()])
        .collect();
    let base = places.first_of(candidates)?;
    let prefix = active.filter(|path| path.is_absolute()).unwrap_or_else(|| base.clone());
    Some(ToolchainParts {
        hidden: vec![base.join(".condarc"), prefix.join(".condarc")],
        programs: vec![prefix.join("bin"), base.join("bin")],
        variables: vec![("CONDA_PREFIX", prefix.clone())],
        granted: vec![base, prefix],
    })
}

fn asdf(places: &mut SearchPlaces<'_>) -> Option<ToolchainParts> {
    let root = places.root("ASDF_DATA_DIR", ".asdf")?;
    Some(ToolchainParts {
        programs: vec![root.join("shims"), root.join("bin")],
        variables: vec![("ASDF_DATA_DIR", root.clone())],
        granted: vec![root],
        ..ToolchainParts::default()
    })
}

/// Mise's shims ask for configuration in the home directory; the newest of each installed tool is taken directly.
fn mise(places: &mut SearchPlaces<'_>) -> Option<ToolchainParts> {
    let data = match places.variable("XDG_DATA_HOME") {
        Some(data) => places.first_of([data.join("mise")])?,
        None => places.root("MISE_DATA_DIR", ".local/share/mise")?,
    };
    let installs = data.join("installs");
    let mut tools: Vec<PathBuf> = fs::read_dir(&installs)
        .into_iter()
        .flatten()
        .flatten()
        .map(|tool| tool.path().join("latest"))
        .collect();
    tools.sort();
    let programs = tools.iter().flat_map(|tool| [tool.join("bin"), tool.clone()]).collect();
    let program = places.in_home(".local/bin/mise");
    Some(ToolchainParts {
        granted: std::iter::once(data.clone()).chain(program).collect(),
        programs,
        variables: vec![("MISE_DATA_DIR", data)],
        ..ToolchainParts::default()
    })
}

fn volta(places: &mut SearchPlaces<'_>) -> Option<ToolchainParts> {
    let root = places.root("VOLTA_HOME", ".volta")?;
    let images = root.join("tools/image/node");
    let newest = version::newest(&images, "").map(|version| images.join(version).join("bin"));
    Some(ToolchainParts {
        programs: newest.into_iter().chain([root.join("bin")]).collect(),
        variables: vec![("VOLTA_HOME", root.clone())],
        granted: vec![root],
        ..ToolchainParts::default()
    })
}

fn go(places: &mut SearchPlaces<'_>) -> Option<ToolchainParts> {
    let installed = places.variable("GOROOT").filter(|path| path.is_dir());
    let downloads = places.in_home("sdk");
    let newest = downloads
        .as_ref()
        .and_then(|sdk| Some(sdk.join(version::newest(sdk, "go")?)));
    let packages = places.variable("GOPATH").or_else(|| places.in_home("go"));
    let roots: Vec<PathBuf> = installed.into_iter().chain(newest).collect();
    let packages = packages
        .into_iter()
        .filter(|path| path.is_absolute())
        .find_map(|path| places.first_of([path]));
    if roots.is_empty() && packages.is_none() {
        places.looked.extend(downloads);
        return None;
    }
    let modules = packages.as_ref().map(|path| ("GOMODCACHE", path.join("pkg/mod")));
    let programs = roots.iter().chain(&packages).map(|root| root.join("bin")).collect();
    Some(ToolchainParts {
        granted: roots.into_iter().chain(packages).collect(),
        programs,
        variables: modules.into_iter().collect(),
        ..ToolchainParts::default()
    })
}

fn simple(places: &mut SearchPlaces<'_>, variable: &'static str, in_home: &str) -> Option<ToolchainParts> {
    let root = places.root(variable, in_home)?;
    Some(ToolchainParts {
        programs: vec![root.join("bin")],
        variables: vec![(variable, root.clone())],
        granted: vec![root],
        ..ToolchainParts::default()
    })
}
