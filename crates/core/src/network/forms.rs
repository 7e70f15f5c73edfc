//! The two forms of rules: text where people read it, parts between our own processes.

use super::secret::{NamedSecret, Placeholder, SecretSpec, SecretValue};
use super::upstream_proxy::UpstreamProxy;
use super::{HeaderRule, Host, HostPort, NetworkPattern, NetworkPolicy, NetworkRule, RequestRules, RuleVerdict};

fn passed<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    postcard::from_bytes(&postcard::to_stdvec(value).unwrap()).unwrap()
}

#[test]
fn rules_pass_between_processes_as_what_they_were_parsed_to() {
    let rules = [
        (RuleVerdict::Allow, "*.example.com:22,8000-8100/tcp"),
        (RuleVerdict::Deny, "[2606:4700::]/32"),
        (RuleVerdict::Ask, "münchen.example:443/tls"),
        (RuleVerdict::Allow, "10.0.0.0/8:*"),
    ];
    let policy = NetworkPolicy {
        rules: rules
            .map(|(verdict, text)| NetworkRule::parse(verdict, text).unwrap())
            .to_vec(),
        public_only: true,
        inward: vec![("intranet.example".parse().unwrap(), 8443)],
    };
    assert_eq!(passed(&policy), policy);
    let mut requests = RequestRules::default();
    requests
        .methods
        .rules
        .push("GET,HEAD api.example.com/v1/*/x*".parse().unwrap());
    requests
        .headers
        .push(HeaderRule::parse_set("api.example.com X-Team: one").unwrap());
    assert_eq!(passed(&requests), requests);
    let given = HostPort {
        port: 5432,
        inside: 15432,
    };
    assert_eq!(passed(&given), given);
}

#[test]
fn people_read_text_and_processes_do_not() {
    let host: Host = "xn--mnchen-3ya.example".parse().unwrap();
    let pattern: NetworkPattern = "*.example.com:443".parse().unwrap();
    assert_eq!(serde_json::to_string(&host).unwrap(), "\"xn--mnchen-3ya.example\"");
    assert_eq!(serde_json::to_string(&pattern).unwrap(), "\"*.example.com:443\"");
    assert!(serde_json::from_str::<Host>("\"a b\"").is_err());
    let bytes = postcard::to_stdvec(&pattern).unwrap();
    assert!(!bytes.windows(2).any(|two| two == b"*."), "{bytes:?}");
}

#[test]
fn what_is_confidential_passes_between_processes_and_is_written_nowhere() {
    let spec = SecretSpec::from_parts("API_KEY", "env:REAL", &["api.example.com"], &["bearer"]).unwrap();
    let secret = NamedSecret {
        spec: spec.clone(),
        value: SecretValue::new(b"hunter2-hunter2".to_vec()).unwrap(),
        placeholder: Placeholder::given("placeholder".to_owned()),
    };
    let got: NamedSecret = passed(&secret);
    assert_eq!((got.spec, got.value.expose()), (spec, &b"hunter2-hunter2"[..]));
    assert_eq!(got.placeholder, secret.placeholder);
    assert!(serde_json::to_string(&secret).is_err());
    let proxy = UpstreamProxy::parse("http://me:secret@proxy.example:3128").unwrap();
    assert_eq!(passed(&proxy), proxy);
    assert!(serde_json::to_string(&proxy).is_err());
}
