//! What names and first bytes look like.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Ports on which pools of miners listen, and hardly anything else does.
pub const MINER_PORTS: [u16; 10] = [3333, 3334, 4444, 5588, 14433, 14444, 20535, 45560, 45700, 53333];

/// Addresses at which clouds hand out credentials of a machine: of Amazon's instances, containers and pods, and of those who took the
/// first one over; of Alibaba and of Oracle.
const METADATA_ADDRESSES: [IpAddr; 7] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
];
/// Names by which they are found.
const METADATA_NAMES: [&str; 5] = [
    "metadata.google.internal",
    "metadata.goog",
    "instance-data",
    "instance-data.ec2.internal",
    "metadata.azure.internal",
];
/// Calls that read keyrings, or memory and files of other processes, and are refused.
const CREDENTIAL_CALLS: [&str; 8] = [
    "add_key",
    "request_key",
    "keyctl",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "open_by_handle_at",
];

/// How much of a connection's beginning is looked at, in bytes.
const FIRST_BYTES: usize = 1024;
/// A label is long from here on, in bytes.
const LONG_LABEL: usize = 24;
/// Labels of this length are long where there are two.
const LONG_LABELS: usize = 16;
/// Names that are longer than this carry something, in bytes.
const LONG_NAME: usize = 120;
/// Entropy of text in base 32 or hexadecimal, in thousandths of a bit for each byte; words have less.
const DATA_MILLIBITS: u32 = 3500;

/// The entropy of `bytes` by how often each occurs, in thousandths of a bit for each byte: 0 to 8000.
pub fn entropy_millibits(bytes: &[u8]) -> u32 {
    let mut counts = [0_u32; 256];
    for byte in bytes {
        counts[usize::from(*byte)] += 1;
    }
    let Ok(length) = u32::try_from(bytes.len()) else {
        return 0;
    };
    let of = |count: u32| {
        let share = f64::from(count) / f64::from(length);
        -share * share.log2()
    };
    let bits: f64 = counts.into_iter().filter(|count| *count > 0).map(of).sum();
    // Between 0 and 8000, so that nothing is lost but the fraction.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between 0 and 8000"
    )]
    let millibits = (bits * 1000.0).clamp(0.0, 8000.0) as u32;
    millibits
}

/// Whether a name that was asked for looks like data and not like a host's.
pub fn is_generated_name(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    // The last two labels are those of whoever answers.
    let labels: Vec<&str> = name.rsplit('.').skip(2).collect();
    let is_data = |label: &str| entropy_millibits(label.as_bytes()) >= DATA_MILLIBITS;
    let longer = |least: usize| {
        labels
            .iter()
            .filter(|label| label.len() >= least && is_data(label))
            .count()
    };
    name.len() > LONG_NAME || longer(LONG_LABEL) > 0 || longer(LONG_LABELS) > 1
}

/// Whether a host, by its name or its address, is a service at which a cloud hands out credentials of a machine.
pub fn is_metadata_service(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match bare.unwrap_or(host).parse::<IpAddr>() {
        Ok(address) => METADATA_ADDRESSES.contains(&address.to_canonical()),
        Err(_) => METADATA_NAMES.iter().any(|name| name.eq_ignore_ascii_case(host)),
    }
}

/// Whether a system call that was refused would have read keyrings or other processes.
pub fn reaches_for_credentials(call: &str) -> bool {
    CREDENTIAL_CALLS.contains(&call)
}

/// Whether the first bytes of a connection are those of a miner that signs in to a pool (the protocols called stratum).
pub fn is_stratum(first: &[u8]) -> bool {
    let first = first.get(..FIRST_BYTES).unwrap_or(first).trim_ascii_start();
    let has = |word: &str| first.windows(word.len()).any(|window| window == word.as_bytes());
    let signs_in = [
        "\"mining.subscribe\"",
        "\"mining.authorize\"",
        "\"mining.configure\"",
        "\"eth_submitLogin\"",
    ];
    let is_login = || has("\"method\"") && has("\"login\"") && has("\"params\"") && has("\"pass\"");
    first.first() == Some(&b'{') && (signs_in.iter().any(|word| has(word)) || is_login())
}
