//! Fetches manifests, and chooses the one of this machine.

use http::StatusCode;
use http::header::CONTENT_TYPE;

use super::{Question, Repository};
use crate::digest::ImageDigest;
use crate::error::ImageError;
use crate::manifest::{ImageManifest, MAX_MANIFEST, ManifestDocument, accepted, of_this_platform};
use crate::reference::ImageReference;

/// By which registries say which manifest they sent.
const DIGEST: &str = "docker-content-digest";

/// The manifest of one image as it was sent.
#[derive(Debug)]
pub(crate) struct FetchedManifest {
    pub(crate) digest: ImageDigest,
    pub(crate) bytes: Vec<u8>,
    pub(crate) manifest: ImageManifest,
    /// The list that it was chosen from.
    pub(crate) index: Option<ImageDigest>,
}

impl Repository<'_> {
    /// The manifest that `reference` means on this machine.
    pub(crate) async fn fetch_manifest(&self, reference: &ImageReference) -> Result<FetchedManifest, ImageError> {
        let (digest, bytes, document) = self
            .document(&reference.asked_for(), reference.digest(), reference)
            .await?;
        let index = match document {
            ManifestDocument::Image(manifest) => {
                return Ok(FetchedManifest {
                    digest,
                    bytes,
                    manifest,
                    index: None,
                });
            }
            ManifestDocument::Index(index) => index,
        };
        let chosen = of_this_platform(&index)?;
        let named = chosen.digest;
        let (_, bytes, document) = self.document(&named.to_string(), Some(named), reference).await?;
        if bytes.len() as u64 != chosen.bytes() {
            return Err(ImageError::OtherSize {
                what: "the manifest",
                digest: named,
                expected: chosen.bytes(),
                found: bytes.len() as u64,
            });
        }
        match document {
            ManifestDocument::Image(manifest) => Ok(FetchedManifest {
                digest: named,
                bytes,
                manifest,
                index: Some(digest),
            }),
            ManifestDocument::Index(_) => Err(ImageError::malformed("the index", "it names another index")),
        }
    }

    async fn document(
        &self,
        asked_for: &str,
        expected: Option<ImageDigest>,
        reference: &ImageReference,
    ) -> Result<(ImageDigest, Vec<u8>, ManifestDocument), ImageError> {
        let question = Question {
            accept: Some(accepted()),
            ..Question::default()
        };
        let response = self.get(&format!("manifests/{asked_for}"), &question).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => {
                return Err(ImageError::Unknown {
                    registry: self.name.clone(),
                    name: reference.familiar(),
                });
            }
            _ => return Err(self.status(response).await),
        }
        let header = |name: &str| {
            response
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned)
        };
        let sent_as = header(CONTENT_TYPE.as_str());
        let said = header(DIGEST).and_then(|said| said.parse::<ImageDigest>().ok());
        let bytes = self.connector.read(response, MAX_MANIFEST, &self.name).await?;
        let found = ImageDigest::of(&bytes);
        for expected in expected.into_iter().chain(said) {
            if expected != found {
                return Err(ImageError::OtherDigest {
                    what: "the manifest",
                    expected,
                    found,
                });
            }
        }
        let document = ManifestDocument::read(&bytes, sent_as.as_deref())?;
        Ok((found, bytes, document))
    }
}
