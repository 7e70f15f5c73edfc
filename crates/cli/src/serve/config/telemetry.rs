//! What a server tells a collector: what the file says, and what the variables of OpenTelemetry do.
//!
//! Variables are heeded as their specification has them, as far as there is something for them here; a protocol that is not
//! spoken is refused. What the file says wins.

use std::path::PathBuf;
use std::time::Duration;

use offleash_api::{BadHeaders, CollectorTls, SignalEndpoint, TelemetryConfig, TelemetrySignal};

use super::keys::TelemetryKeys;
use super::set;
use super::written::Wrong;

/// What is spoken (`OTEL_EXPORTER_OTLP_PROTOCOL`).
const PROTOCOL: &str = "http/json";
/// How often numbers may be sent.
const INTERVALS: std::ops::RangeInclusive<u64> = 1..=3600;
/// How long a collector may take, at most.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
/// How much may be said of the server, in bytes.
const MAX_RESOURCE: usize = 4096;

/// Looks a variable up.
pub(super) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What the table and the variables say.
///
/// # Errors
/// For what is no address, no signal, no number, or not spoken here.
pub(super) fn telemetry(
    table: &TelemetryKeys,
    variables: Variables<'_>,
    config: &mut TelemetryConfig,
) -> Result<(), Wrong> {
    let variable = |name: &str| variables(name).filter(|text| !text.is_empty());
    set(&mut config.service_name, variable("OTEL_SERVICE_NAME"));
    set(&mut config.service_name, table.service_name.clone());
    if let Some(list) = variable("OTEL_RESOURCE_ATTRIBUTES") {
        config.resource =
            resource(&list).ok_or_else(|| Wrong::new("OTEL_RESOURCE_ATTRIBUTES", "it is no list of `NAME=VALUE`"))?;
    }
    if let Some(timeout) = milliseconds(&variable, "OTEL_EXPORTER_OTLP_TIMEOUT")? {
        config.timeout = timeout.clamp(Duration::from_millis(1), MAX_TIMEOUT);
    }
    if let Some(every) = milliseconds(&variable, "OTEL_METRIC_EXPORT_INTERVAL")? {
        let (least, most) = (
            Duration::from_secs(*INTERVALS.start()),
            Duration::from_secs(*INTERVALS.end()),
        );
        config.metric_interval = every.clamp(least, most);
    }
    if let Some(seconds) = table.interval_seconds {
        if !INTERVALS.contains(&seconds) {
            return Err(Wrong::new("telemetry.interval_seconds", "it is from 1 to 3600"));
        }
        config.metric_interval = Duration::from_secs(seconds);
    }
    if variable("OTEL_SDK_DISABLED").is_some_and(|word| word.eq_ignore_ascii_case("true")) {
        return Ok(());
    }
    let wanted = signals(table)?;
    for signal in TelemetrySignal::ALL
        .into_iter()
        .filter(|signal| wanted.contains(signal))
    {
        let endpoint = endpoint(table, &variable, signal)?;
        match signal {
            TelemetrySignal::Traces => config.traces = endpoint,
            TelemetrySignal::Metrics => config.metrics = endpoint,
            TelemetrySignal::Logs => config.logs = endpoint,
        }
    }
    let endpoints = [&config.traces, &config.metrics, &config.logs];
    let is_encrypted = endpoints.into_iter().flatten().any(SignalEndpoint::is_encrypted);
    config.tls = encryption(table, &variable, is_encrypted)?;
    Ok(())
}

/// Whom collectors are vouched for by. A file that nobody needs is read, too: it was named to be used.
fn encryption(
    table: &TelemetryKeys,
    variable: &dyn Fn(&str) -> Option<String>,
    is_encrypted: bool,
) -> Result<Option<CollectorTls>, Wrong> {
    const VARIABLE: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";
    let (key, file) = match (&table.ca, variable(VARIABLE)) {
        (Some(path), _) => ("telemetry.ca", Some(path.clone())),
        (None, found) => (VARIABLE, found.map(PathBuf::from)),
    };
    if !is_encrypted && file.is_none() {
        return Ok(None);
    }
    let authorities: Vec<PathBuf> = file.into_iter().collect();
    let made = CollectorTls::new(&authorities);
    made.map(Some).map_err(|error| Wrong::new(key, error))
}

fn signals(table: &TelemetryKeys) -> Result<Vec<TelemetrySignal>, Wrong> {
    let Some(words) = &table.signals else {
        return Ok(TelemetrySignal::ALL.to_vec());
    };
    let signal = |(number, word): (usize, &String)| {
        let found = TelemetrySignal::ALL.into_iter().find(|signal| signal.as_str() == word);
        found.ok_or_else(|| {
            let message = format!("`{}` is no signal", word.escape_debug());
            Wrong::item("telemetry.signals", number, message).with_hint("there are `traces`, `metrics` and `logs`")
        })
    };
    words.iter().enumerate().map(signal).collect()
}

/// Where one signal goes, if it goes anywhere.
fn endpoint(
    table: &TelemetryKeys,
    variable: &dyn Fn(&str) -> Option<String>,
    signal: TelemetrySignal,
) -> Result<Option<SignalEndpoint>, Wrong> {
    const KEY: &str = "telemetry.endpoint";
    const EVERYWHERE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    const HINT: &str = "`telemetry.endpoint` or OTEL_EXPORTER_OTLP_ENDPOINT names it, as in `http://127.0.0.1:4318`";
    let of_signal = |what: &str| format!("OTEL_EXPORTER_OTLP_{}_{what}", signal.as_str().to_ascii_uppercase());
    let wrong = |key: &str, error: offleash_api::BadEndpoint| Wrong::new(key, error).with_hint(HINT);
    let own = of_signal("ENDPOINT");
    let endpoint = if let Some(named) = &table.endpoint {
        SignalEndpoint::below(named, signal).map_err(|error| wrong(KEY, error))?
    } else {
        let exporter = format!("OTEL_{}_EXPORTER", signal.as_str().to_ascii_uppercase());
        if variable(&exporter).is_some_and(|word| word == "none") {
            return Ok(None);
        }
        let endpoint = match (variable(&own), variable(EVERYWHERE)) {
            (Some(named), _) => SignalEndpoint::parse(&named).map_err(|error| wrong(&own, error))?,
            (None, Some(named)) => SignalEndpoint::below(&named, signal).map_err(|error| wrong(EVERYWHERE, error))?,
            (None, None) => return Ok(None),
        };
        check_protocol(variable, &of_signal("PROTOCOL"))?;
        endpoint
    };
    let names = [of_signal("HEADERS"), "OTEL_EXPORTER_OTLP_HEADERS".to_owned()];
    for name in names {
        if let Some(list) = variable(&name) {
            let with = endpoint.with_headers(&list);
            return with.map(Some).map_err(|error: BadHeaders| Wrong::new(name, error));
        }
    }
    Ok(Some(endpoint))
}

fn check_protocol(variable: &dyn Fn(&str) -> Option<String>, own: &str) -> Result<(), Wrong> {
    for name in [own, "OTEL_EXPORTER_OTLP_PROTOCOL"] {
        match variable(name).as_deref() {
            None => {}
            Some(PROTOCOL) => return Ok(()),
            Some(other) => {
                let message = format!("`{}` is not spoken here, {PROTOCOL} alone is", other.escape_debug());
                return Err(Wrong::new(name, message).with_hint(
                    "collectors take it at the port of `http/protobuf`; set the variable, or `telemetry.endpoint`",
                ));
            }
        }
    }
    Ok(())
}

fn milliseconds(variable: &dyn Fn(&str) -> Option<String>, name: &str) -> Result<Option<Duration>, Wrong> {
    let parsed = variable(name).map(|text| text.trim().parse::<u64>()).transpose();
    let parsed = parsed.map_err(|_| Wrong::new(name, "it is no number of milliseconds"))?;
    Ok(parsed.map(Duration::from_millis))
}

/// What else is said of the server: `a=b,c=d`.
fn resource(list: &str) -> Option<Vec<(String, String)>> {
    let pairs = list.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let (name, value) = (name.trim(), value.trim());
        (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
    };
    (list.len() <= MAX_RESOURCE).then(|| pairs.map(pair).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(table: &TelemetryKeys, variables: &[(&str, &str)]) -> Result<TelemetryConfig, String> {
        let mut config = TelemetryConfig::default();
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        match telemetry(table, &variable, &mut config) {
            Ok(()) => Ok(config),
            Err(wrong) => Err(format!("{wrong:?}")),
        }
    }

    fn places(config: &TelemetryConfig) -> [Option<String>; 3] {
        [&config.traces, &config.metrics, &config.logs].map(|endpoint| endpoint.as_ref().map(ToString::to_string))
    }

    #[test]
    fn nothing_is_told_unless_a_collector_is_named_and_the_file_wins() {
        let none = TelemetryKeys::default();
        assert_eq!(places(&read(&none, &[]).unwrap()), [None, None, None]);
        let everywhere = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1/base");
        let all = ["traces", "metrics", "logs"].map(|signal| Some(format!("http://c:1/base/v1/{signal}")));
        assert_eq!(places(&read(&none, &[everywhere]).unwrap()), all);
        let named = TelemetryKeys {
            endpoint: Some("http://127.0.0.1:2".to_owned()),
            signals: Some(vec!["metrics".to_owned()]),
            ..TelemetryKeys::default()
        };
        let metrics = Some("http://127.0.0.1:2/v1/metrics".to_owned());
        assert_eq!(places(&read(&named, &[everywhere]).unwrap()), [None, metrics, None]);
        assert_eq!(
            places(&read(&named, &[("OTEL_SDK_DISABLED", "true")]).unwrap()),
            [None, None, None]
        );
    }

    #[test]
    fn variables_say_what_their_specification_says() {
        let none = TelemetryKeys::default();
        let config = read(
            &none,
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
                ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://127.0.0.1:2/own"),
                ("OTEL_METRICS_EXPORTER", "none"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "a=b"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
                ("OTEL_METRIC_EXPORT_INTERVAL", "5000"),
                ("OTEL_SERVICE_NAME", "mine"),
                ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test, a=b"),
            ],
        )
        .unwrap();
        let traces = Some("http://127.0.0.1:1/v1/traces".to_owned());
        let logs = Some("http://127.0.0.1:2/own".to_owned());
        assert_eq!(places(&config), [traces, None, logs]);
        assert_eq!(
            (config.timeout, config.metric_interval, config.service_name.as_str()),
            (Duration::from_millis(1500), Duration::from_secs(5), "mine")
        );
        assert_eq!(config.resource.len(), 2);
    }

    #[test]
    fn what_cannot_be_is_refused_by_the_name_of_what_said_it() {
        let none = TelemetryKeys::default();
        let everywhere = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1");
        for (variable, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "ftp://c"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nothing/here.pem"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret=of-ours"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a"),
        ] {
            let wrong = read(&none, &[everywhere, (variable, value)]).unwrap_err();
            assert!(wrong.contains(variable) && !wrong.contains("of-ours"), "{wrong}");
        }
        let signals = TelemetryKeys {
            signals: Some(vec!["profiles".to_owned()]),
            ..TelemetryKeys::default()
        };
        assert!(read(&signals, &[]).unwrap_err().contains("telemetry.signals"));
        let interval = TelemetryKeys {
            interval_seconds: Some(0),
            ..TelemetryKeys::default()
        };
        assert!(read(&interval, &[]).unwrap_err().contains("telemetry.interval_seconds"));
    }
}
