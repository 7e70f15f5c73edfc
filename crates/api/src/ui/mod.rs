//! The dashboard: its page, that of a desktop's screen, and what both need, served without a key to whoever may call the server at all.
//!
//! The page holds no key and knows nothing until somebody types one, which it sends as a header as every other client does
//! (docs/design/0053). So these answers are files and headers, and nothing else: no cookie, no session, no state.
//! Deliberately not here: what the page asks for (`native`, `e2b`).

mod files;
mod headers;

use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, LOCATION, VARY};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};

use self::files::{FILES, UiFile};
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::{self, Body};

/// Where the dashboard is.
const PATH: &str = "/ui";
/// What it is, as an absolute path: names in it are then those of its folder.
const ROOT: &str = "/ui/";
/// The page of the dashboard.
const PAGE: &str = "index.html";

/// A file as it is sent to whoever takes gzip.
static PACKED: LazyLock<Vec<Bytes>> = LazyLock::new(|| FILES.iter().map(|file| file.packed()).collect());

/// Answers a request for the dashboard; `None` for all others.
pub(crate) fn answer(parts: &Parts) -> Option<Response<Body>> {
    let path = parts.uri.path();
    let name = match path.strip_prefix(ROOT) {
        Some("") => PAGE,
        Some(name) => name,
        None if path == PATH => return Some(with_headers(moved(), None)),
        None => return None,
    };
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        let mut refused = ApiRefusal::wrong_method(&parts.method).answer();
        refused
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Some(with_headers(refused, None));
    }
    let found = FILES.iter().position(|file| file.name == name);
    let Some(place) = found else {
        let refused = ApiRefusal::not_found("the dashboard has no such file").answer();
        return Some(with_headers(refused, None));
    };
    Some(match is_page(name) {
        true => page(&FILES[place]),
        false => with_headers(sent(place, &parts.headers), None),
    })
}

/// Whether a file is a page, and not what one needs.
fn is_page(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, end)| end == "html")
}

/// A page, with a number that nobody can guess: scripts and styles that have it are the only ones that the browser takes.
fn page(file: &UiFile) -> Response<Body> {
    let Some(nonce) = headers::nonce() else {
        let refused = ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, "the machine gives no random numbers");
        return refused.answer();
    };
    let text = String::from_utf8_lossy(file.bytes).replace(files::NONCE, &nonce);
    with_headers(of(file, body::full(text)), Some(&nonce))
}

fn moved() -> Response<Body> {
    let mut response = answer::empty(StatusCode::PERMANENT_REDIRECT);
    response.headers_mut().insert(LOCATION, HeaderValue::from_static(ROOT));
    response
}

fn sent(place: usize, asked: &HeaderMap) -> Response<Body> {
    let file = &FILES[place];
    if !takes_gzip(asked) {
        return of(file, body::full(file.bytes));
    }
    let mut response = of(file, body::full(PACKED[place].clone()));
    let told = response.headers_mut();
    told.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response
}

fn of(file: &UiFile, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let told = response.headers_mut();
    told.insert(CONTENT_TYPE, HeaderValue::from_static(file.content_type()));
    told.append(VARY, HeaderValue::from_static("accept-encoding"));
    response
}

fn with_headers(mut response: Response<Body>, nonce: Option<&str>) -> Response<Body> {
    headers::tell(response.headers_mut(), nonce);
    response
}

/// Whether a client says that it takes gzip; every browser does.
fn takes_gzip(asked: &HeaderMap) -> bool {
    let listed = asked.get_all(ACCEPT_ENCODING).iter();
    let mut codings = listed
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    codings.any(|coding| {
        let (name, quality) = coding.split_once(';').unwrap_or((coding, ""));
        let refused = quality.trim().trim_start_matches("q=").parse() == Ok(0.0_f32);
        name.trim().eq_ignore_ascii_case("gzip") && !refused
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use data_encoding::HEXLOWER;
    use http::Request;
    use http_body_util::BodyExt as _;
    use sha2::{Digest as _, Sha256};

    use super::*;

    fn parts(method: Method, path: &str, fields: &[(&'static str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn asked(method: Method, path: &str, fields: &[(&'static str, &str)]) -> Option<Response<Body>> {
        answer(&parts(method, path, fields))
    }

    async fn bytes(response: Response<Body>) -> Vec<u8> {
        response.into_body().collect().await.unwrap().to_bytes().to_vec()
    }

    fn policy(response: &Response<Body>) -> &str {
        response.headers()["content-security-policy"].to_str().unwrap()
    }

    #[test]
    fn what_is_not_below_its_path_is_none_of_it() {
        for path in ["/", "/uix", "/v1/version", "/Ui", "//ui", "/sandboxes/ui"] {
            assert!(asked(Method::GET, path, &[]).is_none(), "{path}");
        }
        let moved = asked(Method::GET, "/ui", &[]).unwrap();
        assert_eq!(
            (moved.status().as_u16(), &moved.headers()[LOCATION]),
            (308, &"/ui/".parse().unwrap())
        );
    }

    #[test]
    fn files_are_named_and_no_path_leads_out() {
        for path in [
            "/ui/../ui/app.js",
            "/ui/..%2fapp.js",
            "/ui/%61pp.js",
            "/ui//app.js",
            "/ui/views/",
            "/ui/app.js/",
            "/ui/nothing.js",
        ] {
            assert_eq!(asked(Method::GET, path, &[]).unwrap().status(), 404, "{path}");
        }
        assert_eq!(asked(Method::GET, "/ui/app.js", &[]).unwrap().status(), 200);
        assert_eq!(asked(Method::HEAD, "/ui/", &[]).unwrap().status(), 200);
        // The other page has its own number, too.
        let screen = asked(Method::GET, "/ui/desktop.html", &[]).unwrap();
        assert!(policy(&screen).contains("script-src 'nonce-"), "{screen:?}");
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            assert_eq!(asked(method.clone(), "/ui/", &[]).unwrap().status(), 405, "{method}");
        }
    }

    #[test]
    fn every_answer_has_the_headers_that_keep_pages_apart() {
        let all = FILES.iter().map(|file| format!("/ui/{}", file.name));
        for path in all.chain(["/ui", "/ui/", "/ui/nothing"].map(str::to_owned)) {
            let response = asked(Method::GET, &path, &[]).unwrap();
            let told = response.headers();
            for (name, value) in [
                ("x-content-type-options", "nosniff"),
                ("referrer-policy", "no-referrer"),
                ("cache-control", "no-store"),
                ("x-frame-options", "DENY"),
                ("cross-origin-opener-policy", "same-origin"),
                ("cross-origin-resource-policy", "same-origin"),
            ] {
                assert_eq!(told[name], value, "{path}: {name}");
            }
            let policy = policy(&response);
            for directive in [
                "default-src 'none'",
                "frame-ancestors 'none'",
                "base-uri 'none'",
                "form-action 'none'",
                "require-trusted-types-for 'script'",
                "trusted-types 'none'",
            ] {
                assert!(policy.split("; ").any(|one| one == directive), "{path}: {policy}");
            }
            assert!(!policy.contains("unsafe") && !policy.contains('*'), "{path}: {policy}");
            assert!(!told.contains_key("set-cookie"), "{path}");
        }
    }

    #[tokio::test]
    async fn the_page_names_a_number_that_is_new_each_time_and_no_other_source() {
        let nonce_of = |response: &Response<Body>| {
            let policy = policy(response).to_owned();
            let (_, rest) = policy.split_once("script-src 'nonce-").unwrap();
            let nonce = rest.split_once('\'').unwrap().0.to_owned();
            assert!(policy.contains(&format!("style-src 'nonce-{nonce}'")), "{policy}");
            nonce
        };
        let (one, other) = (
            asked(Method::GET, "/ui/", &[]).unwrap(),
            asked(Method::GET, "/ui/", &[]).unwrap(),
        );
        let nonce = nonce_of(&one);
        assert!(nonce.len() >= 22 && nonce != nonce_of(&other), "{nonce}");
        let page = String::from_utf8(bytes(one).await).unwrap();
        assert!(!page.contains(files::NONCE), "{page}");
        // What the browser takes has it, and nothing stands in the page itself.
        for tag in page
            .split('<')
            .filter(|tag| tag.starts_with("script") || tag.starts_with("link rel=\"stylesheet"))
        {
            assert!(tag.contains(&format!("nonce=\"{nonce}\"")), "{tag}");
        }
        assert!(
            !page.contains("style=") && !page.contains(" onclick") && !page.contains("<style"),
            "{page}"
        );
    }

    #[tokio::test]
    async fn what_is_packed_is_the_same() {
        for (place, file) in FILES.iter().enumerate() {
            let path = format!("/ui/{}", file.name);
            if is_page(file.name) {
                continue;
            }
            let plain = asked(Method::GET, &path, &[("accept-encoding", "br, gzip;q=0")]).unwrap();
            assert!(!plain.headers().contains_key(CONTENT_ENCODING));
            assert_eq!(bytes(plain).await, file.bytes, "{path}");
            let packed = asked(Method::GET, &path, &[("accept-encoding", "gzip, deflate, br")]).unwrap();
            assert_eq!(packed.headers()[CONTENT_ENCODING], "gzip");
            let mut text = Vec::new();
            flate2::read::GzDecoder::new(&*bytes(packed).await)
                .read_to_end(&mut text)
                .unwrap();
            assert_eq!(text, FILES[place].bytes, "{path}");
        }
    }

    #[test]
    fn the_first_view_is_small() {
        const MAX_FIRST_VIEW: usize = 200_000;
        let loaded = FILES
            .iter()
            .zip(PACKED.iter())
            .filter(|(file, _)| !file.name.starts_with("vendor/"));
        let first: usize = loaded.map(|(_, packed)| packed.len()).sum();
        assert!(first <= MAX_FIRST_VIEW, "{first}");
    }

    #[test]
    fn hostile_text_reaches_the_page_as_text_alone() {
        // What a sandbox says is shown, and nothing of it is markup or code.
        for file in FILES.iter().filter(|file| !file.name.starts_with("vendor/")) {
            let text = std::str::from_utf8(file.bytes).unwrap();
            for sink in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "createContextualFragment",
                "DOMParser",
                "setHTML",
                "srcdoc",
                "eval(",
                "new Function",
                "javascript:",
                "localStorage.setItem('key",
                "document.cookie",
            ] {
                assert!(!text.contains(sink), "`{sink}` in {}", file.name);
            }
            let address = |word: &&str| word.starts_with("http://") || word.starts_with("https://");
            let mut named = text.split(['"', '\'', '`', ' ', '(']).filter(address);
            assert_eq!(
                named.find(|word| !word.contains("www.w3.org/2000/svg")),
                None,
                "{}",
                file.name
            );
        }
    }

    #[test]
    fn what_is_of_others_is_as_they_published_it() {
        // `cargo xtask vendored` says of which releases.
        const DIGESTS: [(&str, &str); 5] = [
            (
                "vendor/xterm-addon-fit/LICENSE",
                "e256f01188af527e4d06d21d06fbf785ae9c50d4b328bf03cbe0ba7f0aa4228f",
            ),
            (
                "vendor/xterm-addon-fit/addon-fit.mjs",
                "2d87e1bddc73be9111de8beee5370c3bb7aac9c94e18e6f245f02ca741ef1769",
            ),
            (
                "vendor/xterm/LICENSE",
                "b569f629d00f2626a8100df2a1798210535621e42164dfd426a6fe5aac7b0ccd",
            ),
            (
                "vendor/xterm/xterm.css",
                "854a7c0fb70e8b1a083c16797ab827299fb18744f5ad34f227b48337e33293c6",
            ),
            (
                "vendor/xterm/xterm.mjs",
                "b336ec65a086c056d4804b3d4c2347da5663d3f23c3f25be866467bd8857ad59",
            ),
        ];
        let vendored = FILES.iter().filter(|file| file.name.starts_with("vendor/"));
        let found: Vec<_> = vendored
            .map(|file| (file.name, HEXLOWER.encode(&Sha256::digest(file.bytes))))
            .collect();
        let expected: Vec<_> = DIGESTS.map(|(name, digest)| (name, digest.to_owned())).into();
        assert_eq!(found, expected);
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
        let mut left = vec![folder.clone()];
        let mut found = Vec::new();
        while let Some(directory) = left.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => left.push(path),
                    false => found.push(path.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned()),
                }
            }
        }
        found.sort();
        let mut served: Vec<_> = FILES.iter().map(|file| file.name.to_owned()).collect();
        served.sort();
        assert_eq!(served, found);
    }
}
