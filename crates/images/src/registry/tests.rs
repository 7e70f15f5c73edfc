//! Pulls from a registry that is made here, honest or not.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use super::testing::{Answer, Image, NoIds, Request, Server, Site};
use super::*;
use crate::ImageProgress;
use crate::digest::ImageDigest;
use crate::manifest::OCI_MANIFEST;
use crate::progress::{NoProgress, ProgressStep};
use crate::tar::testing::TarBuilder;
use crate::unpack::LayerOwnership;

#[test]
fn an_image_is_pulled_once_and_found_by_its_name() {
    let image = Image::new();
    let served = image.clone();
    let server = Server::start(move |request, _| served.answer(request));
    let site = Site::new();
    assert!(!site.pull(&server).unwrap().was_current);
    site.is_whole(&image);
    let before = server.paths().len();
    assert!(site.pull(&server).unwrap().was_current);
    assert_eq!(
        server.paths().len(),
        before + 1,
        "the manifest alone is asked for again"
    );
    let name = format!("localhost:{}/a/b:t", server.port);
    let lease = site
        .store
        .open_image(&name, LayerOwnership::Flat, &NoIds, &NoProgress)
        .unwrap();
    assert!(matches!(
        site.store.remove(&name, &NoIds),
        Err(ImageError::InUse { .. })
    ));
    site.store.prune(true, &NoIds).unwrap();
    assert!(lease.layers[0].join("bin/tool").exists());
    drop(lease);
    site.store.remove(&name, &NoIds).unwrap();
    site.is_empty();
    assert!(matches!(site.store.find(&name), Err(ImageError::Missing { .. })));
}

#[test]
fn the_part_of_this_machine_is_taken_from_a_list() {
    let image = Image::new();
    let digest = ImageDigest::of(&image.manifest);
    let index = json!({ "schemaVersion": 2, "manifests": [
        { "mediaType": OCI_MANIFEST, "digest": ImageDigest::of(b"arm"), "size": 3, "platform": { "os": "linux", "architecture": "arm64" } },
        { "mediaType": OCI_MANIFEST, "digest": digest, "size": image.manifest.len(), "platform": { "os": "linux", "architecture": offleash_core::processor::ImagePlatform::OURS.architecture } },
    ]});
    let index = index.to_string().into_bytes();
    let (served, list) = (image.clone(), index.clone());
    let server = Server::start(move |request, _| match request.path.ends_with("/t") {
        true => Answer::ok(&*list).with("Content-Type", "application/vnd.oci.image.index.v1+json"),
        false => served.answer(request),
    });
    let site = Site::new();
    let pulled = site.pull(&server).unwrap();
    assert_eq!(
        (pulled.record.digest, pulled.record.index),
        (digest, Some(ImageDigest::of(&index)))
    );
    site.is_whole(&image);
}

#[test]
fn a_registry_that_lies_is_refused() {
    type Lie = fn(&Image, &Request, Answer) -> Answer;
    let lies: [(&str, Lie); 7] = [
        ("other contents", |image, request, answer| {
            match request.path == image.layer_path() {
                true => Answer::ok(vec![7; image.layer.len()]),
                false => answer,
            }
        }),
        ("more", |image, request, answer| {
            match request.path == image.layer_path() {
                true => Answer::ok([&image.layer[..], b"x"].concat()),
                false => answer,
            }
        }),
        ("more than it says", |image, request, answer| {
            match request.path == image.layer_path() {
                true => {
                    let body = [&image.layer[..], &[7; 9_999_999]].concat();
                    let framed = [
                        format!("{:x}\r\n", body.len()).into_bytes(),
                        body,
                        b"\r\n0\r\n\r\n".to_vec(),
                    ]
                    .concat();
                    Answer::ok(framed).with("Transfer-Encoding", "chunked")
                }
                false => answer,
            }
        }),
        ("another manifest", |_, request, answer| {
            match request.path.ends_with("/t") {
                true => answer.with("Docker-Content-Digest", ImageDigest::of(b"other")),
                false => answer,
            }
        }),
        ("another kind", |_, request, answer| {
            match request.path.ends_with("/t") {
                true => Answer::ok(answer.body).with("Content-Type", "application/vnd.oci.image.index.v1+json"),
                false => answer,
            }
        }),
        ("another configuration", |image, request, answer| {
            match answer.body == image.config && request.path.contains("blobs") {
                true => Answer::ok(vec![b' '; image.config.len()]),
                false => answer,
            }
        }),
        ("an endless manifest", |_, request, answer| {
            match request.path.ends_with("/t") {
                true => Answer::ok(vec![b' '; 5 << 20]),
                false => answer,
            }
        }),
    ];
    for (lie, change) in lies {
        let image = Image::new();
        let server = Server::start(move |request, _| change(&image, request, image.answer(request)));
        let site = Site::new();
        let error = site.pull(&server).unwrap_err();
        let is_refused = matches!(
            error,
            ImageError::OtherDigest { .. }
                | ImageError::OtherSize { .. }
                | ImageError::Malformed { .. }
                | ImageError::TooLarge { .. }
        );
        assert!(is_refused, "{lie}: {error:?}");
        site.is_empty();
    }
}

#[test]
fn what_broke_off_goes_on_from_there() {
    let image = Image::new();
    let served = image.clone();
    let server = Server::start(move |request, times| {
        let mut answer = served.answer(request);
        if request.path == served.layer_path() && times < 3 {
            // Longer than its end: the connection is closed before.
            answer.ends_at = 100_000;
        }
        answer
    });
    let site = Site::new();
    site.pull(&server).unwrap();
    site.is_whole(&image);
    let seen = server.seen.lock().unwrap();
    let ranges: Vec<_> = seen
        .iter()
        .filter_map(|request| request.headers.get("range").cloned())
        .collect();
    assert_eq!(ranges, ["bytes=100000-", "bytes=200000-", "bytes=300000-"]);
}

#[test]
fn what_an_earlier_process_left_is_used_unless_it_is_damaged() {
    for damage in [false, true] {
        let image = Image::new();
        let served = image.clone();
        let server = Server::start(move |request, _| served.answer(request));
        let site = Site::new();
        let mut left = image.layer[..50_000].to_vec();
        left[7] ^= u8::from(damage);
        let partial = site
            .store
            .path
            .join("partial")
            .join(ImageDigest::of(&image.layer).hex());
        std::fs::write(partial, left).unwrap();
        let source = format!("localhost:{}/a/b", server.port);
        let layer = ImageDigest::of(&image.layer);
        site.store.note_partial_source(&layer, &source).unwrap();
        site.pull(&server).unwrap();
        site.is_whole(&image);
        let asked = server
            .paths()
            .into_iter()
            .filter(|path| *path == image.layer_path())
            .count();
        assert_eq!(asked, 1 + usize::from(damage));
    }
}

#[test]
fn a_registry_that_falls_silent_is_given_up() {
    for path in ["manifests", "blobs"] {
        let image = Image::new();
        let server = Server::start(move |request, _| {
            let mut answer = image.answer(request);
            if request.path.contains(path) {
                answer.ends_at = answer.body.len() / 2;
                answer.stalls = true;
            }
            answer
        });
        let mut site = Site::new();
        // In other tests nobody is given up, however busy the machine is.
        site.settings.stall_timeout = Duration::from_millis(500);
        let error = site.pull(&server).unwrap_err();
        assert!(
            matches!(error, ImageError::Stalled { .. } | ImageError::Unreachable { .. }),
            "{path}: {error:?}"
        );
        site.is_empty();
    }
}

#[test]
fn tokens_and_passwords_go_to_whom_they_are_for() {
    let image = Image::new();
    let elsewhere = Arc::new({
        let image = image.clone();
        Server::start(move |_, _| Answer::ok(&*image.layer))
    });
    let port = elsewhere.port;
    let served = image.clone();
    let server = Server::start(move |request, _| {
        let own = &request.headers["host"];
        if request.path.starts_with("/token") {
            let is_known = request
                .headers
                .get("authorization")
                .is_some_and(|basic| basic == "Basic bWU6d29yZA==");
            return match is_known {
                true => Answer::ok(r#"{"token":"confidential-token"}"#),
                false => Answer::status(401, r#"{"errors":[{"message":"who are you"}]}"#),
            };
        }
        if request
            .headers
            .get("authorization")
            .is_none_or(|token| token != "Bearer confidential-token")
        {
            let challenge = format!("Bearer realm=\"http://{own}/token\",service=\"s\",scope=\"repository:a/b:pull\"");
            return Answer::status(401, "{}").with("WWW-Authenticate", challenge);
        }
        match request.path == served.layer_path() {
            true => Answer::status(307, "").with("Location", format!("http://127.0.0.1:{port}/elsewhere?signed=1")),
            false => served.answer(request),
        }
    });
    let mut site = Site::new();
    let error = site.pull(&server).unwrap_err();
    assert!(
        matches!(&error, ImageError::Denied { said, .. } if said == "who are you"),
        "{error:?}"
    );
    let config = site.directory.path().join("config.json");
    let auths = json!({ "auths": { format!("localhost:{}", server.port): { "auth": "bWU6d29yZA==" } } });
    std::fs::write(&config, auths.to_string()).unwrap();
    site.settings.docker_config = Some(config);
    site.pull(&server).unwrap();
    site.is_whole(&image);
    let seen = elsewhere.seen.lock().unwrap();
    assert_eq!(seen.len(), 1);
    assert!(!seen[0].headers.contains_key("authorization"), "{seen:?}");
    let token = server
        .paths()
        .into_iter()
        .find(|path| path.starts_with("/token"))
        .unwrap();
    assert_eq!(token, "/token?scope=repository%3Aa%2Fb%3Apull&service=s");
}

#[test]
fn redirects_end_and_lead_to_no_place_without_encryption() {
    let image = Image::new();
    let server = Server::start(move |request, _| match request.path == image.layer_path() {
        true => Answer::status(302, "").with("Location", &request.path),
        false => image.answer(request),
    });
    let error = Site::new().pull(&server).unwrap_err();
    assert!(matches!(error, ImageError::BadAnswer { .. }), "{error:?}");
    let server = Server::start(|_, _| Answer::status(302, "").with("Location", "http://registry.example/"));
    let error = Site::new().pull(&server).unwrap_err();
    assert!(matches!(error, ImageError::PlainHttp { .. }), "{error:?}");
}

#[test]
fn a_layer_that_another_registry_sent_is_given_to_who_sends_it_too() {
    let image = Image::new();
    let layer = image.layer_path();
    // What the other has of the layer: nothing but its name, a word that it is there, other bytes, or all of it.
    type Claim = fn(&Image, &Request) -> Answer;
    let claims: [(Claim, bool); 4] = [
        (|_, _| Answer::status(404, ""), false),
        (
            |image, request| match request.method.as_str() {
                "HEAD" => Answer::ok(&*image.layer),
                _ => Answer::status(404, ""),
            },
            false,
        ),
        (|image, _| Answer::ok(vec![7; image.layer.len()]), false),
        (|image, request| image.answer(request), true),
    ];
    for (claim, is_taken) in claims {
        let (first, second, path) = (image.clone(), image.clone(), layer.clone());
        let honest = Server::start(move |request, _| first.answer(request));
        let other = Server::start(move |request, _| match request.path == path {
            true => claim(&second, request),
            false => second.answer(request),
        });
        let site = Site::new();
        site.pull(&honest).unwrap();
        let pulled = site.pull(&other);
        assert_eq!(pulled.is_ok(), is_taken, "{pulled:?}");
        assert_eq!(site.store.list().unwrap().len(), 1 + usize::from(is_taken));
        // What was there is there still.
        assert!(site.pull(&honest).unwrap().was_current);
    }
}

#[test]
fn of_one_registry_another_repository_is_asked_whether_it_has_the_layer() {
    for is_there in [true, false] {
        let image = Image::new();
        let (served, layer) = (image.clone(), image.layer_path());
        let server = Server::start(move |request, _| {
            let of_first = request.path.replace("/v2/c/d/", "/v2/a/b/");
            if request.path.starts_with("/v2/c/d/") && of_first == layer && !is_there {
                return Answer::status(404, "");
            }
            served.answer(&Request {
                path: of_first,
                ..request.clone()
            })
        });
        let site = Site::new();
        site.pull(&server).unwrap();
        let pulled = site.pull_as(&format!("localhost:{}/c/d:t", server.port), &NoProgress);
        assert_eq!(pulled.is_ok(), is_there, "{pulled:?}");
        let seen = server.seen.lock().unwrap();
        let of_second = seen.iter().filter(|request| request.path.contains("/c/d/blobs/"));
        let methods: Vec<&str> = of_second.map(|request| request.method.as_str()).collect();
        assert!(methods.iter().all(|method| *method == "HEAD"), "{methods:?}");
        assert!(!methods.is_empty());
    }
}

#[test]
fn what_another_registry_began_is_begun_anew() {
    let image = Image::new();
    let served = image.clone();
    let server = Server::start(move |request, _| match request.path == served.layer_path() {
        true => Answer::status(404, ""),
        false => served.answer(request),
    });
    let site = Site::new();
    let layer = ImageDigest::of(&image.layer);
    std::fs::write(site.store.path.join("partial").join(layer.hex()), &image.layer).unwrap();
    site.store.note_partial_source(&layer, "elsewhere/a/b").unwrap();
    let error = site.pull(&server).unwrap_err();
    assert!(matches!(error, ImageError::MissingBlob { .. }), "{error:?}");
    assert!(!site.store.has_blob(&layer));
}

#[test]
fn a_registry_on_this_machine_alone_is_asked_without_encryption() {
    let site = Site::new();
    let connector = Connector::new(&site.settings).unwrap();
    for (name, is_encrypted) in [
        ("localhost:5000/a/b", false),
        ("127.0.0.1:5000/a/b", false),
        ("python", true),
        ("registry.example/a/b", true),
    ] {
        let all = Repository::all_of(&name.parse().unwrap(), &site.settings, &connector).unwrap();
        assert_eq!(all[0].base.is_encrypted(), is_encrypted, "{name}");
    }
}

#[test]
fn what_speaks_no_tls_is_told_how_it_is_asked() {
    use offleash_core::error::Explained as _;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("localhost:{}/a/b:t", listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _sent = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let mut site = Site::new();
    site.settings.plain_http = false;
    let error = site.pull_as(&name, &NoProgress).unwrap_err();
    assert!(matches!(error, ImageError::NoTls { is_here: true, .. }), "{error:?}");
    assert!(error.hint().unwrap().contains("--plain-http"));
}

#[test]
fn what_is_missing_or_not_for_us_is_said() {
    let server = Server::start(|_, _| Answer::status(404, "{}"));
    let error = Site::new().pull(&server).unwrap_err();
    assert!(matches!(error, ImageError::Unknown { .. }), "{error:?}");
    let image = Image::new();
    let server = Server::start(move |request, _| match request.path == image.layer_path() {
        true => Answer::status(404, ""),
        false => image.answer(request),
    });
    let error = Site::new().pull(&server).unwrap_err();
    assert!(matches!(error, ImageError::MissingBlob { .. }), "{error:?}");
    let arm = json!({ "architecture": "arm64", "os": "linux", "rootfs": { "diff_ids": [] } });
    let arm = Image::of(arm.to_string().into_bytes(), Image::new().layer);
    let layer = arm.layer_path();
    let server = Server::start(move |request, _| arm.answer(request));
    let error = Site::new().pull(&server).unwrap_err();
    assert!(matches!(error, ImageError::OtherPlatform { .. }), "{error:?}");
    assert!(
        !server.paths().contains(&layer),
        "what it is for is seen before its layers are fetched"
    );
    let old = Server::start(|_, _| Answer::ok(r#"{"schemaVersion":1,"fsLayers":[]}"#));
    assert!(matches!(Site::new().pull(&old), Err(ImageError::SchemaOne)));
}

#[test]
fn a_hostile_layer_leaves_no_image() {
    let layer = TarBuilder::default()
        .symlink("out", "/etc")
        .file("out/passwd", b"mine")
        .end();
    let config = json!({ "architecture": offleash_core::processor::ImagePlatform::OURS.architecture, "os": "linux", "rootfs": { "diff_ids": [ImageDigest::of(&layer)] } });
    let image = Image::of(config.to_string().into_bytes(), layer);
    let server = Server::start(move |request, _| image.answer(request));
    let site = Site::new();
    let error = site.pull(&server).unwrap_err();
    assert!(matches!(error, ImageError::Layer { .. }), "{error:?}");
    site.is_empty();
}

#[test]
fn a_mirror_is_asked_first_and_may_not_have_it() {
    let image = Image::new();
    let served = image.clone();
    let registry = Server::start(move |request, _| served.answer(request));
    let (served, broken) = (image.clone(), Arc::new(Mutex::new(true)));
    let is_broken = Arc::clone(&broken);
    let mirror = Server::start(move |request, _| match *is_broken.lock().unwrap() {
        true => Answer::status(404, "{}"),
        false => served.answer(request),
    });
    for is_broken in [true, false] {
        *broken.lock().unwrap() = is_broken;
        let mut site = Site::new();
        site.settings.mirrors = vec![MirrorSetting {
            registry: format!("localhost:{}", registry.port),
            url: format!("http://127.0.0.1:{}", mirror.port),
        }];
        let before = registry.paths().len();
        site.pull(&registry).unwrap();
        site.is_whole(&image);
        assert_eq!(registry.paths().len() > before, is_broken);
    }
}

/// Counts what is told.
#[derive(Default)]
struct Told(Mutex<Vec<ProgressStep>>);

impl ImageProgress for Told {
    fn step(&self, step: ProgressStep) {
        self.0.lock().unwrap().push(step);
    }
}

#[test]
fn two_at_once_fetch_a_layer_once() {
    let image = Image::new();
    let served = image.clone();
    let server = Server::start(move |request, _| {
        if request.path == served.layer_path() {
            std::thread::sleep(Duration::from_millis(300));
        }
        served.answer(request)
    });
    let site = Site::new();
    let name = format!("localhost:{}/a/b:t", server.port);
    let told = std::thread::scope(|scope| {
        let pulls = [0, 1].map(|_| {
            scope.spawn(|| {
                let told = Told::default();
                site.pull_as(&name, &told).unwrap();
                told.0.into_inner().unwrap()
            })
        });
        pulls.map(|pull| pull.join().unwrap()).concat()
    });
    site.is_whole(&image);
    let asked = server
        .paths()
        .into_iter()
        .filter(|path| *path == image.layer_path())
        .count();
    assert_eq!(asked, 1);
    let unpacked = told
        .iter()
        .filter(|step| matches!(step, ProgressStep::Unpacking { .. }))
        .count();
    assert_eq!(unpacked, 1);
}

#[tokio::test]
async fn a_connector_for_addresses_of_others_asks_nobody_on_this_machine() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let connector = Connector::new(&RegistrySettings::default()).unwrap().to_public();
    // By its address, and by names that lead there.
    for host in ["127.0.0.1", "[::ffff:127.0.0.1]", "localhost", "x.localhost"] {
        let address = RegistryAddress::parse(&format!("http://{host}:{port}/")).unwrap();
        let request = http::Request::post("/").body(bytes::Bytes::new()).unwrap();
        let refused = connector.send(&address, request, "the webhook").await.unwrap_err();
        assert!(refused.to_string().contains("no public address"), "{host}: {refused}");
    }
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}
