//! The filter's tests: the program in a simulated machine, and on the running kernel.

mod arguments;
mod kernel;
mod machine;
mod neighbours;
mod processors;
mod program;
mod service;
mod supervisor;
mod worker;

use super::FilterOptions;

/// Every combination of options.
fn all_options() -> impl Iterator<Item = FilterOptions> {
    (0_u8..=u8::MAX).map(|bits| FilterOptions {
        allow_ptrace: bits & 1 != 0,
        notify: bits & 2 != 0,
        observe_connect: bits & 4 != 0,
        deny_memfd: bits & 8 != 0,
        host_namespaces: bits & 16 != 0,
        count_forks: bits & 32 != 0,
        hands_out: false,
        kept_to_cpus: false,
        show_memory: bits & 4 != 0,
        watch_reservations: bits & 8 != 0,
        superuser: bits & 64 != 0,
        allow_set_id: bits & 128 != 0,
        offer_renames: bits & 4 == 0,
    })
}
