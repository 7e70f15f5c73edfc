//! Has the program start where it can hand a run over before it has a C library (`offleash_entry::start`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // One that is loaded at any address is put right by the C library first: it hands over when that is there.
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    if flags.contains("relocation-model=static") {
        println!("cargo::rustc-link-arg-bins=-Wl,--entry=offleash_entry");
    }
}
