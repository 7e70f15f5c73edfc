//! What is done: shell scripts, each in a directory of its own that its preparation fills.

/// One kind of work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    /// As it is named in reports and by `--only`.
    pub(super) name: &'static str,
    /// Programs that it needs.
    pub(super) needs: &'static [&'static str],
    /// Fills the directory, once, outside of any sandbox.
    pub(super) prepare: &'static str,
    /// Undoes what one run did to it.
    pub(super) reset: &'static str,
    /// The work, which is timed.
    pub(super) run: &'static str,
}

/// In front of each script. `RUST` is where the Rust toolchain is that runs this benchmark.
pub(super) const PRELUDE: &str = "set -e; export HOME=\"$PWD/home\" CARGO_HOME=\"$PWD/home/cargo\" LC_ALL=C.UTF-8\n";

const REPOSITORY: &str = r#"
python3 - <<'END'
import os
for d in range(200):
    os.makedirs(f"tree/d{d % 20}/s{d}")
    for i in range(100):
        with open(f"tree/d{d % 20}/s{d}/f{i}.txt", "w") as file:
            file.write(f"file {d} {i}\n" * 50)
END
cd tree
git init --quiet .
git config gc.auto 0
git config maintenance.auto false
git add .
git -c user.name=bench -c user.email=bench@example.com commit --quiet --message all
sleep 1.1
git update-index --refresh --force-write-index 2>/dev/null || git status --short
"#;

/// What `npm create vite -- --template react-ts` asks for.
const FRONT_END: &str = r#"
mkdir app
cat > app/package.json <<'END'
{ "name": "app", "private": true, "version": "0.0.0", "type": "module",
  "dependencies": { "react": "^19.1.0", "react-dom": "^19.1.0" },
  "devDependencies": { "@eslint/js": "^9.30.0", "@types/react": "^19.1.0", "@types/react-dom": "^19.1.0",
    "@vitejs/plugin-react": "^4.6.0", "eslint": "^9.30.0", "eslint-plugin-react-hooks": "^5.2.0",
    "eslint-plugin-react-refresh": "^0.4.20", "globals": "^16.3.0", "typescript": "~5.8.0",
    "typescript-eslint": "^8.35.0", "vite": "^7.0.0" } }
END
cd app
npm install --cache ../cache --no-audit --no-fund --no-update-notifier
rm -rf node_modules
"#;

const WHEELS: &str = "python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest wheels \
    numpy pandas python-dateutil pytz six tzdata requests urllib3 idna certifi";

const CRATES: &str = r#"
python3 - <<'END'
import os
names = [f"part{i}" for i in range(8)]
with open("Cargo.toml", "w") as file:
    file.write(f'[workspace]\nresolver = "2"\nmembers = {names!r}\n'.replace("'", '"'))
for i, name in enumerate(names):
    os.makedirs(f"{name}/src")
    uses = "".join(f'part{j} = {{ path = "../part{j}" }}\n' for j in range(i) if i - j < 3)
    with open(f"{name}/Cargo.toml", "w") as file:
        file.write(f'[package]\nname = "{name}"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n{uses}')
    with open(f"{name}/src/lib.rs", "w") as file:
        for n in range(60):
            file.write(f"""
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Thing{n} {{ pub name: String, pub counts: std::collections::BTreeMap<String, Vec<u64>> }}
impl Thing{n} {{
    pub fn total(&self) -> u64 {{ self.counts.values().flatten().map(|c| c * {n}).sum() }}
    pub fn words(&self) -> Vec<String> {{ self.name.split(' ').map(|w| format!("{{w}}-{n}")).collect() }}
}}
""")
os.makedirs("part7/src/bin")
with open("part7/src/bin/main.rs", "w") as file:
    file.write('fn main() { println!("{}", part7::Thing1::default().total()); }\n')
END
"$RUST/bin/cargo" generate-lockfile --offline --quiet
"#;

const FILES: &str = r#"
python3 - <<'END'
import io, tarfile
with tarfile.open("files.tar", "w") as tar:
    for d in range(500):
        for i in range(100):
            member = tarfile.TarInfo(f"files/d{d}/f{i}")
            member.size, member.mtime = 1024, 1700000000
            tar.addfile(member, io.BytesIO(b"x" * 1024))
END
"#;

const TO_BE_RENAMED: &str = r#"
mkdir from to
python3 - <<'END'
for i in range(20000):
    with open(f"from/{i}", "w") as file:
        file.write("content\n")
END
"#;

const RENAME: &str = r#"
exec python3 -c '
import os
for i in range(20000):
    os.rename(f"from/{i}", f"to/{i}")
'
"#;

const RENAME_BACK: &str = r#"
python3 -c '
import os
for name in os.listdir("to"):
    os.rename(f"to/{name}", f"from/{name}")
'
"#;

/// All of it, as the report shows it.
pub(super) const JOBS: [Job; 7] = [
    Job {
        name: "git-status",
        needs: &["git", "python3"],
        prepare: REPOSITORY,
        reset: "",
        run: "cd tree; exec git status --short",
    },
    Job {
        name: "npm-install",
        needs: &["npm", "node"],
        prepare: FRONT_END,
        reset: "rm -rf app/node_modules",
        run: "cd app; exec npm install --offline --cache ../cache --no-audit --no-fund --no-update-notifier",
    },
    Job {
        name: "pip-install",
        needs: &["python3"],
        prepare: WHEELS,
        reset: "rm -rf site",
        run: "exec python3 -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-index --no-deps \
              --target site wheels/*.whl",
    },
    Job {
        name: "cargo-build",
        needs: &["cc", "python3"],
        prepare: CRATES,
        reset: "rm -rf target",
        run: "export PATH=\"$RUST/bin:$PATH\"; exec cargo build --offline --quiet",
    },
    Job {
        name: "renames",
        needs: &["python3"],
        prepare: TO_BE_RENAMED,
        reset: RENAME_BACK,
        run: RENAME,
    },
    Job {
        name: "forks",
        needs: &[],
        prepare: "",
        reset: "",
        run: "i=0; while [ $i -lt 1000 ]; do /bin/true; i=$((i+1)); done",
    },
    Job {
        name: "tar",
        needs: &["tar", "python3"],
        prepare: FILES,
        reset: "rm -rf files",
        run: "exec tar --extract --file files.tar",
    },
];
