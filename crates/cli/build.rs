//! Has the program start where it can hand a run over before it has a C library (`offleash_entry::start`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--entry=offleash_entry");
}
