//! Every key of the policy file, described; `docs/policy.md` is made from this.

use crate::env::DEFAULT_PASS;
use crate::limits::{LimitName, LimitUnit};

/// One key of the policy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyDoc {
    /// The key with its table, such as `filesystem.read`; `mount[].source` for a table that may occur several times.
    pub key: String,
    /// What it takes.
    pub kind: &'static str,
    /// What holds when it is absent.
    pub default: String,
    /// What it does, as one sentence without a full stop.
    pub doc: &'static str,
    /// A valid value, as TOML.
    pub example: String,
}

const PATHS: &str = "list of path patterns";

/// Key, kind, default, sentence, example.
const KEYS: [(&str, &str, &str, &str, &str); 66] = [
    (
        "level",
        "word",
        "auto",
        "the isolation level: auto, simulated, auto:simulated, wasm, process-landlock, process, container or microvm",
        "\"process\"",
    ),
    (
        "min_level",
        "word",
        "none",
        "the weakest level that is acceptable; below it nothing runs",
        "\"process\"",
    ),
    (
        "degrade",
        "word",
        "refuse",
        "whether to run when something asked for cannot be enforced here: refuse, or allow and list it in the record",
        "\"allow\"",
    ),
    (
        "network",
        "word",
        "none",
        "what may be reached: `none`, or a table of rules (`[network]`, below)",
        "\"none\"",
    ),
    (
        "network.allow",
        "list of HOST[:PORTS][/PROTOCOL]",
        "none",
        "hosts that may be reached: a name, `*.` before a name, an address or a network in CIDR form; ports 80 and 443 unless named",
        "[\"pypi.org\", \"github.com:22,443\", \"*.example.com\"]",
    ),
    (
        "network.ask",
        "list of HOST[:PORTS][/PROTOCOL]",
        "none",
        "hosts about which the terminal is asked when they are connected to; without a terminal they are refused",
        "[\"api.example.com\", \"*.example.org:443\"]",
    ),
    (
        "network.ask_timeout",
        "time",
        "60s",
        "how long such a connection waits for an answer; then it is refused",
        "\"30s\"",
    ),
    (
        "network.deny",
        "list of HOST[:PORTS]",
        "none",
        "hosts that may not be reached although a less specific rule allows them; every port unless named",
        "[\"internal.example.com\"]",
    ),
    (
        "network.methods",
        "list of METHODS HOST/PATH",
        "none",
        "the only requests that pass to a host: methods or `*`, a host, and a path in which `*` is a segment or, at the \
         end, whatever follows; the host may be reached on ports 80 and 443, and the gateway opens TLS to it",
        "[\"GET,HEAD api.example.com/v1/*\"]",
    ),
    (
        "network.set_headers",
        "list of HOST NAME: VALUE",
        "none",
        "headers that requests to a host get, in place of what the sandbox sent; only over TLS, or where a rule names \
         port 80 or the protocol http",
        "[\"api.example.com X-Team: agents\"]",
    ),
    (
        "network.remove_headers",
        "list of HOST NAME",
        "none",
        "headers that are taken from requests to a host",
        "[\"api.example.com Cookie\"]",
    ),
    (
        "network.dns_servers",
        "list of IP[:PORT]",
        "those of the machine",
        "DNS servers for names that may be reached, at most 10; their answers are checked as ever",
        "[\"192.0.2.53\"]",
    ),
    (
        "network.upstream_proxy",
        "http://HOST:PORT or socks5://HOST:PORT, env, env:VARIABLE or file:PATH",
        "none",
        "the proxy of your network, through which everything is reached: its URL, or the variable or file that holds it; \
         there the URL may have a password; env is HTTPS_PROXY and its kin; with socks5 names are resolved here, with \
         socks5h and http by the proxy",
        "\"env:CORPORATE_PROXY\"",
    ),
    (
        "network.no_proxy",
        "list of HOST",
        "[]",
        "hosts that are reached without the upstream proxy: a name, `*.` before a name, an address or a network in CIDR form",
        "[\"*.corp.example\", \"10.0.0.0/8\"]",
    ),
    (
        "network.internet",
        "boolean",
        "false",
        "whether every public address may be reached, at any port, unless a rule says otherwise",
        "true",
    ),
    (
        "network.proxy_variables",
        "boolean",
        "false",
        "whether HTTP_PROXY and its kin name the proxy inside, for programs that insist on one",
        "true",
    ),
    (
        "network.secret[].name",
        "name of a variable",
        "required",
        "the variable inside that holds a placeholder for the secret",
        "\"API_KEY\"",
    ),
    (
        "network.secret[].source",
        "env:VARIABLE or file:PATH",
        "required",
        "where the value is, outside",
        "\"env:REAL_KEY\"",
    ),
    (
        "network.secret[].hosts",
        "list of HOST",
        "required",
        "the hosts to which the value is sent, over TLS that is opened; the placeholder is refused everywhere else",
        "[\"api.example.com\", \"*.example.org\"]",
    ),
    (
        "network.secret[].places",
        "list of places",
        "any header for credentials",
        "where in a request it may stand: bearer, basic, header:NAME, query:NAME; or alone: sigv4, to sign requests to AWS, basic:USER, to sign in as USER",
        "[\"header:x-api-key\"]",
    ),
    (
        "network.publish",
        "list of [ADDRESS:]HOSTPORT:PORT, or PORT",
        "none",
        "ports of the sandbox to which programs outside may connect; on 127.0.0.1 unless an IPv4 address is named, and \
         at any free port where HOSTPORT is 0",
        "[\"8000:3000\", 5173]",
    ),
    (
        "network.host_ports",
        "list of PORT[:INSIDE]",
        "none",
        "services on the host's 127.0.0.1 that are on the sandbox's, too; nothing else of the host is",
        "[5432, \"11434:8434\"]",
    ),
    (
        "ids",
        "word",
        "single",
        "how user ids are mapped: single, or range for 65,536 ids",
        "\"range\"",
    ),
    (
        "allow_ptrace",
        "boolean",
        "false",
        "whether processes inside may trace each other, as debuggers do",
        "true",
    ),
    (
        "gpu",
        "text",
        "none",
        "graphics cards that the sandbox is given: `all`, or their numbers; what that costs is in levels.md",
        "\"0,1\"",
    ),
    (
        "warm",
        "number",
        "0",
        "how many sandboxes `offleash run` keeps ready for later runs of the same kind, as `--warm` does: 0 to 8",
        "2",
    ),
    (
        "toolchains",
        "list of names or paths",
        "[]",
        "toolchains in the home directory granted read-only: pyenv, nvm, uv, cargo, conda, asdf, mise, volta, go, deno, \
         bun, or a path",
        "[\"pyenv\"]",
    ),
    (
        "filesystem.workspace",
        "word",
        "overlay",
        "what happens to changes in the workspace: overlay keeps them aside, rw applies them at the end, ro allows none; \
         none means no workspace",
        "\"ro\"",
    ),
    (
        "filesystem.read",
        PATHS,
        "[]",
        "host paths that may be read",
        "[\"~/data\"]",
    ),
    (
        "filesystem.write",
        PATHS,
        "[]",
        "host paths that may be read and written",
        "[\"/srv/out\"]",
    ),
    ("filesystem.deny", PATHS, "[]", "paths that are hidden", "[\"**/.env\"]"),
    (
        "filesystem.protect",
        PATHS,
        "[]",
        "paths in the workspace whose changes are not applied unless named",
        "[\"Makefile\"]",
    ),
    (
        "mount[].source",
        "path",
        "required",
        "the host's path; `~/` is the home directory",
        "\"/srv/data\"",
    ),
    (
        "mount[].target",
        "absolute path",
        "required",
        "the path inside",
        "\"/data\"",
    ),
    ("mount[].access", "word", "ro", "ro or rw", "\"rw\""),
    (
        "volume[].name",
        "name of a volume",
        "required",
        "which volume of yours; `offleash volume create` makes one",
        "\"cache\"",
    ),
    (
        "volume[].target",
        "absolute path",
        "required",
        "the path inside",
        "\"/data\"",
    ),
    ("volume[].access", "word", "rw", "ro or rw", "\"ro\""),
    (
        "tmpfs[].target",
        "absolute path",
        "required",
        "where an empty directory in memory is made",
        "\"/scratch\"",
    ),
    (
        "tmpfs[].size",
        "size",
        "the limit `tmp`",
        "how much it holds",
        "\"64M\"",
    ),
    (
        "monitor[].name",
        "lower-case letters, digits, dashes",
        "required",
        "what the rule is called; the name of a built-in rule changes that one",
        "\"port-scan\"",
    ),
    (
        "monitor[].watch",
        "word",
        "the built-in rule's",
        "the figure that is watched, one of those in monitoring.md",
        "\"refused-connections\"",
    ),
    (
        "monitor[].threshold",
        "number",
        "the built-in rule's",
        "from which value on the rule fires, in the unit of its figure",
        "20",
    ),
    (
        "monitor[].window",
        "time",
        "the built-in rule's, or 10s",
        "over which time: 1s to 1h",
        "\"5s\"",
    ),
    (
        "monitor[].action",
        "word",
        "the built-in rule's, or alert",
        "what is done: off, log, alert, throttle, pause, snapshot-and-pause or kill; those that pause are for sandboxes of a server",
        "\"kill\"",
    ),
    (
        "commands.allow",
        "list of command patterns",
        "every command",
        "the only executables that may be run; an empty list allows none",
        "[\"git\", \"/usr/bin/python3*\"]",
    ),
    (
        "commands.deny",
        "list of command patterns",
        "[]",
        "executables that may not be run, even when allowed",
        "[\"curl\"]",
    ),
    (
        "env.pass",
        "list of names",
        "",
        "variables passed from the host, with wildcards; names that look like secrets only when written in full",
        "[\"CI\", \"MYAPP_*\"]",
    ),
    (
        "env.set",
        "table of strings",
        "{}",
        "variables set to a value",
        "{ PYTHONDONTWRITEBYTECODE = \"1\" }",
    ),
    (
        "filesystem",
        "table",
        "{}",
        "rules of the file system; the most specific wins",
        "{}",
    ),
    ("commands", "table", "{}", "which executables may be run", "{}"),
    ("env", "table", "{}", "which variables the sandbox sees", "{}"),
    (
        "tool",
        "list of tables",
        "[]",
        "tools that code inside may call, each `[[tool]]`",
        "[]",
    ),
    (
        "tool[].name",
        "name",
        "required",
        "the name of a tool that code inside may call: a command, and a function of the Python and Node.js module `offleash_tools`",
        "\"search\"",
    ),
    (
        "tool[].description",
        "text",
        "none",
        "what it does, for whoever writes the code",
        "\"Searches the catalogue.\"",
    ),
    (
        "tool[].parameters",
        "table",
        "any object",
        "JSON schema of its parameters",
        "{ type = \"object\", required = [\"query\"] }",
    ),
    (
        "tool[].program",
        "list of words",
        "none",
        "a program of yours that is called outside: parameters as JSON on standard input, the answer on standard output",
        "[\"/srv/bin/search\"]",
    ),
    (
        "tool[].url",
        "URL",
        "none",
        "an endpoint to which parameters are posted as JSON; without TLS only one on this machine",
        "\"http://127.0.0.1:8080/search\"",
    ),
    (
        "tool[].headers",
        "table of strings",
        "{}",
        "headers of such a request: a value, or where it is (env:VARIABLE or file:PATH)",
        "{ authorization = \"env:SEARCH_TOKEN\" }",
    ),
    (
        "tool[].mcp",
        "list of words",
        "none",
        "a server of MCP that is started outside and spoken to over its standard streams",
        "[\"my-mcp-server\"]",
    ),
    (
        "tool[].mcp_tool",
        "name",
        "the tool's name",
        "which of its tools is called",
        "\"search\"",
    ),
    ("tool[].timeout", "time", "60s", "how long a call may take", "\"10s\""),
    (
        "tool[].where",
        "condition",
        "always",
        "what parameters have to be: comparisons (<, <=, >, >=, ==, !=, in, not in, prefix, below, exists) with `and`, `or` and parentheses; a missing parameter passes none",
        "\"amount <= 1000 and currency in [EUR, USD]\"",
    ),
    ("tool[].calls", "number", "any", "how many calls there may be", "10"),
    (
        "tool[].ask",
        "boolean",
        "false",
        "whether a person is asked about each call; where nobody is there to ask it is refused",
        "true",
    ),
    (
        "tool_grants",
        "list of NAMES [where CONDITION] [calls N] [ask]",
        "what the tools say",
        "what is granted of the tools: each has to be provably within what a tool says itself, and what none grants is refused",
        "[\"search calls 5\", \"pay where amount <= 5\"]",
    ),
];

/// Every key, tables first, each followed by what is in it.
pub fn reference() -> Vec<KeyDoc> {
    let mut keys: Vec<KeyDoc> = KEYS
        .iter()
        .map(written)
        .chain(tables())
        .chain(LimitName::ALL.into_iter().map(|name| limit(name.row())))
        .collect();
    keys.sort_by_key(|doc| (doc.key.contains('.'), table_of(&doc.key), doc.key.contains('.')));
    keys
}

fn table_of(key: &str) -> String {
    key.split_once('.')
        .map_or_else(String::new, |(table, _)| table.to_owned())
}

fn written((key, kind, default, doc, example): &(&str, &'static str, &str, &'static str, &str)) -> KeyDoc {
    let default = if *key == "env.pass" {
        DEFAULT_PASS.join(", ")
    } else {
        (*default).to_owned()
    };
    KeyDoc {
        key: (*key).to_owned(),
        kind,
        default,
        doc,
        example: (*example).to_owned(),
    }
}

fn tables() -> impl Iterator<Item = KeyDoc> {
    [
        (
            "mount",
            "list of tables",
            "[]",
            "further host paths, each `[[mount]]`",
            "[]",
        ),
        ("volume", "list of tables", "[]", "volumes, each `[[volume]]`", "[]"),
        (
            "tmpfs",
            "list of tables",
            "[]",
            "further empty directories, each `[[tmpfs]]`",
            "[]",
        ),
        (
            "monitor",
            "list of tables",
            "the built-in rules",
            "rules of monitoring, each `[[monitor]]`: what is watched from outside, and what is done; monitoring.md has them",
            "[]",
        ),
        (
            "network.secret",
            "list of tables",
            "[]",
            "secrets that requests may use and the sandbox does not have, each `[[network.secret]]`",
            "[]",
        ),
        (
            "lifecycle",
            "table",
            "{}",
            "when a sandbox of a server sleeps, and when checkpoints of it are made; `offleash create --policy` reads it, a run \
             does not",
            "{}",
        ),
        (
            "lifecycle.idle",
            "time",
            "the server's",
            "after how long it sleeps while nobody uses it; \"0\" is never",
            "\"10m\"",
        ),
        (
            "lifecycle.idle_memory",
            "boolean",
            "the server's",
            "whether its sleep keeps memory and processes, not files alone",
            "false",
        ),
        (
            "lifecycle.checkpoint_every",
            "time",
            "the server's",
            "how often a checkpoint is made by itself, if it was used; \"0\" is never",
            "\"10m\"",
        ),
        (
            "lifecycle.checkpoint_before",
            "list of commands",
            "the server's",
            "commands before which one is made; what programs start by themselves is not seen",
            "[\"rm -rf\", \"git reset --hard\"]",
        ),
        (
            "lifecycle.checkpoint_keep",
            "number",
            "the server's",
            "how many checkpoints that were made by themselves are kept",
            "5",
        ),
        (
            "lifecycle.ask_before",
            "list of commands",
            "none",
            "commands before which a person is asked, beside those of the server; what programs start by themselves is not seen",
            "[\"git push\"]",
        ),
        (
            "lifecycle.ask_before_restore",
            "boolean",
            "false",
            "whether a person is asked before the sandbox is put back to a checkpoint",
            "true",
        ),
        (
            "limits",
            "table",
            "{}",
            "resource limits; every value may be \"unlimited\"",
            "{}",
        ),
    ]
    .iter()
    .map(written)
}

fn limit(row: &crate::limits::LimitRow) -> KeyDoc {
    let (kind, example) = match row.unit {
        LimitUnit::Cpus => ("number of CPUs", "1.5"),
        LimitUnit::Time => ("time", "\"5m\""),
        LimitUnit::Size => ("size", "\"512M\""),
        LimitUnit::Count => ("count", "64"),
    };
    KeyDoc {
        key: format!("limits.{}", row.word),
        kind,
        default: row.name.default_text(),
        doc: row.doc,
        example: example.to_owned(),
    }
}
