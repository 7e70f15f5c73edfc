//! Registries that never come to an end, or want what is not theirs.

use std::time::Duration;

use serde_json::json;

use super::testing::{Answer, Image, Server, Site};
use super::*;
use crate::digest::ImageDigest;

/// How often a server was asked for a path.
fn times_asked(server: &Server, wanted: &str) -> usize {
    server.paths().iter().filter(|path| *path == wanted).count()
}

#[test]
fn a_blob_that_is_begun_anew_again_and_again_has_an_end() {
    let image = Image::new();
    let served = image.clone();
    let server = Server::start(move |request, _| {
        let mut answer = served.answer(request);
        if request.path == served.layer_path() {
            // A little each time, and never where the last one ended.
            match request.headers.contains_key("range") {
                true => answer.headers = vec![("Content-Range".to_owned(), "bytes 7-8/9".to_owned())],
                false => answer.ends_at = 5,
            }
        }
        answer
    });
    let site = Site::new();
    let error = site.pull(&server).unwrap_err();
    assert!(matches!(error, ImageError::Unreachable { .. }), "{error:?}");
    let asked = times_asked(&server, &image.layer_path());
    assert!(asked <= 2 + MAX_ATTEMPTS as usize, "{asked}");
    site.is_empty();
}

#[test]
fn a_blob_that_comes_by_the_byte_has_an_end() {
    let layer = vec![7; 1000];
    let config = json!({
        "architecture": offleash_core::processor::ImagePlatform::OURS.architecture, "os": "linux",
        "rootfs": { "type": "layers", "diff_ids": [ImageDigest::of(&layer)] },
    });
    let image = Image::of(config.to_string().into_bytes(), layer);
    let served = image.clone();
    let server = Server::start(move |request, _| {
        let mut answer = served.answer(request);
        if request.path == served.layer_path() {
            answer.ends_at = 1;
        }
        answer
    });
    let mut site = Site::new();
    site.settings.first_pause = Duration::ZERO;
    let error = site.pull(&server).unwrap_err();
    assert!(matches!(error, ImageError::Unreachable { .. }), "{error:?}");
    let asked = times_asked(&server, &image.layer_path());
    assert_eq!(asked, 1 + download::MAX_RESUMPTIONS as usize);
}

#[test]
fn a_pull_that_nobody_waits_for_has_a_time() {
    let image = Image::new();
    let server = Server::start(move |request, _| {
        let mut answer = image.answer(request);
        answer.stalls = request.path == image.layer_path();
        answer.ends_at -= usize::from(answer.stalls);
        answer
    });
    let mut site = Site::new();
    site.settings.pull_timeout = Some(Duration::from_millis(300));
    let error = site.pull(&server).unwrap_err();
    assert!(matches!(error, ImageError::Late { .. }), "{error:?}");
    site.is_empty();
}

#[test]
fn a_registry_elsewhere_has_nothing_of_this_machine_asked() {
    let here = Server::start(|_, _| Answer::ok(r#"{"token":"x"}"#));
    let realm = format!("Bearer realm=\"http://127.0.0.1:{}/admin\"", here.port);
    let settings = RegistrySettings::default();
    let connector = Connector::new(&settings).unwrap();
    let ask = |registry: &str, settings: &RegistrySettings| {
        let reference: ImageReference = format!("{registry}/a/b:t").parse().unwrap();
        let repositories = Repository::all_of(&reference, settings, &connector).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime
            .block_on(repositories[0].answer_challenge(std::slice::from_ref(&realm)))
            .map(drop)
    };
    let error = ask("registry.example", &settings).unwrap_err();
    assert!(matches!(error, ImageError::BadAnswer { .. }), "{error:?}");
    assert_eq!(here.paths().len(), 0);
    // One on this machine may name another there.
    let plain = RegistrySettings {
        plain_http: true,
        ..RegistrySettings::default()
    };
    ask("localhost:5000", &plain).unwrap();
    assert_eq!(here.paths().len(), 1);
}
