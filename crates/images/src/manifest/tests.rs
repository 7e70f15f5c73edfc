use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn descriptor(media_type: &str) -> Value {
    json!({ "mediaType": media_type, "digest": ImageDigest::of(b"x"), "size": 3 })
}

fn manifest() -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": descriptor(OCI_CONFIG),
        "layers": [descriptor(OCI_LAYER)],
    })
}

fn read(document: &Value, sent_as: Option<&str>) -> Result<ManifestDocument, ImageError> {
    ManifestDocument::read(document.to_string().as_bytes(), sent_as)
}

fn with(mut document: Value, key: &str, value: Value) -> Value {
    document[key] = value;
    document
}

fn without(mut document: Value, key: &str) -> Value {
    document.as_object_mut().unwrap().remove(key);
    document
}

#[test]
fn documents_are_what_they_and_the_registry_say() {
    assert!(matches!(
        read(&manifest(), Some(OCI_MANIFEST)),
        Ok(ManifestDocument::Image(_))
    ));
    assert!(matches!(
        read(&without(manifest(), "mediaType"), None),
        Ok(ManifestDocument::Image(_))
    ));
    let parameter = format!("{OCI_MANIFEST}; charset=utf-8");
    assert!(read(&manifest(), Some(&parameter)).is_ok());
    let index = json!({ "schemaVersion": 2, "manifests": [descriptor(OCI_MANIFEST)] });
    assert!(matches!(read(&index, Some(INDEXES[0])), Ok(ManifestDocument::Index(_))));
    for (document, sent_as) in [
        (manifest(), Some(INDEXES[0])),
        (with(manifest(), "manifests", json!([])), None),
        (with(index.clone(), "mediaType", json!(OCI_MANIFEST)), None),
        (without(manifest(), "layers"), None),
        (json!({}), None),
        (json!([]), None),
        (with(manifest(), "config", json!({})), None),
    ] {
        assert!(read(&document, sent_as).is_err(), "{document}");
    }
}

#[test]
fn what_is_no_image_for_us_is_said_to_be_none() {
    let old = json!({ "schemaVersion": 1, "name": "a", "fsLayers": [] });
    assert!(matches!(read(&old, None), Err(ImageError::SchemaOne)));
    let sent = "application/vnd.docker.distribution.manifest.v1+prettyjws";
    assert!(matches!(read(&json!({}), Some(sent)), Err(ImageError::SchemaOne)));
    let chart = with(
        manifest(),
        "config",
        descriptor("application/vnd.cncf.helm.config.v1+json"),
    );
    assert!(matches!(
        read(&chart, None),
        Err(ImageError::UnknownMediaType {
            what: "the configuration",
            ..
        })
    ));
    let foreign = json!([descriptor("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")]);
    let foreign = with(manifest(), "layers", foreign);
    assert!(matches!(
        read(&foreign, None),
        Err(ImageError::UnknownMediaType { what: "a layer", .. })
    ));
    let many = with(manifest(), "layers", json!(vec![descriptor(OCI_LAYER); MAX_LAYERS + 1]));
    assert!(matches!(read(&many, None), Err(ImageError::TooManyLayers { .. })));
    for (size, is_taken) in [(0, true), (-1, false), (i64::MAX, false)] {
        let layers = json!([with(descriptor(OCI_LAYER), "size", json!(size))]);
        assert_eq!(
            read(&with(manifest(), "layers", layers), None).is_ok(),
            is_taken,
            "{size}"
        );
    }
}

fn index(platforms: &[&str]) -> Vec<Descriptor> {
    let of = |(number, platform): (usize, &&str)| {
        let mut parts = platform.split('/');
        let mut next = || parts.next();
        let (os, architecture, variant) = (next(), next(), next());
        let platform = json!({ "os": os, "architecture": architecture, "variant": variant });
        let digest = ImageDigest::of(&number.to_le_bytes());
        json!({ "mediaType": OCI_MANIFEST, "size": 1, "digest": digest, "platform": platform })
    };
    serde_json::from_value(platforms.iter().enumerate().map(of).collect()).unwrap()
}

#[test]
fn the_part_of_this_machine_is_chosen() {
    const AMD: ImagePlatform = ImagePlatform::AMD64;
    const ARM: ImagePlatform = ImagePlatform::ARM64;
    for (ours, platforms, chosen) in [
        (AMD, &["linux/arm64", "linux/amd64"][..], 1),
        (AMD, &["linux/amd64/v3", "linux/amd64", "unknown/unknown"], 1),
        (AMD, &["windows/amd64", "linux/amd64/v2"], 1),
        (ARM, &["linux/amd64", "linux/arm64/v8"], 1),
        (ARM, &["linux/arm/v7", "linux/arm64/v9", "linux/arm64/v8"], 2),
        (ARM, &["linux/arm/v7", "linux/arm64"], 1),
    ] {
        let index = index(platforms);
        assert_eq!(of_platform(&index, ours).unwrap(), &index[chosen], "{platforms:?}");
    }
    let names = ["linux/arm64", "windows/amd64", "unknown/unknown", "linux/arm64"];
    let refused = of_platform(&index(&names), AMD).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the image is for linux/arm64, windows/amd64, not for linux/amd64"
    );
    assert!(of_this_platform(&[]).is_err());
}

#[test]
fn a_configuration_says_how_programs_start() {
    let document = json!({
        "architecture": ImagePlatform::OURS.architecture, "os": "linux", "created": "2026-01-01T00:00:00Z",
        "rootfs": { "type": "layers", "diff_ids": [ImageDigest::of(b"a")] },
        "config": { "Env": ["A=b=c", "broken", "=x"], "Cmd": ["python3"], "Entrypoint": null, "User": "1000:1000",
                    "WorkingDir": "/app", "Labels": { "a": "b" } },
    });
    let config = ImageConfig::read(document.to_string().as_bytes(), 1).unwrap();
    assert_eq!(config.env, [("A".to_owned(), "b=c".to_owned())]);
    assert_eq!(
        (config.command, config.entrypoint, config.user.as_str()),
        (vec!["python3".to_owned()], vec![], "1000:1000")
    );
    assert!(ImageConfig::read(document.to_string().as_bytes(), 2).is_err());
    let arm = with(document.clone(), "architecture", json!("arm64")).to_string();
    let refused = ImageConfig::read(arm.as_bytes(), 1).unwrap_err();
    assert!(matches!(refused, ImageError::OtherPlatform { .. }), "{refused}");
    let nul = with(document, "config", json!({ "Cmd": ["a\0b"] })).to_string();
    assert!(ImageConfig::read(nul.as_bytes(), 1).is_err());
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        let _read = ManifestDocument::read(text.as_bytes(), None);
        let _read = ImageConfig::read(text.as_bytes(), 0);
    }
}
