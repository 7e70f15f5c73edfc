use offleash_core::tool::ToolCaller;
use offleash_core::units::Millis;
use offleash_protocol::tools::CommandAnswer;

use super::*;

fn tool(name: &str, schema: Value, grant: &str) -> DeclaredTool {
    DeclaredTool {
        name: name.parse().expect("a name"),
        description: "Does it.".to_owned(),
        parameters: schema.to_string(),
        caller: ToolCaller::Program {
            argv: vec!["true".to_owned()],
        },
        timeout: Millis(1000),
        grant: grant.parse().expect("a grant"),
    }
}

fn pay(grant: &str) -> DeclaredTool {
    let schema = json!({
        "type": "object", "required": ["amount"], "additionalProperties": false,
        "properties": { "amount": { "type": "number", "minimum": 0 }, "to": { "type": "string" } },
    });
    tool("pay", schema, grant)
}

fn desk(grant: &str, narrowed: Option<&[&str]>) -> Result<ToolDesk, ToolSetupError> {
    let of = |texts: &[&str]| texts.iter().map(|text| text.parse().expect("a grant")).collect();
    ToolDesk::new(
        vec![pay(grant), tool("crm.find-one", json!({}), "crm.find-one")],
        narrowed.map(of),
    )
}

/// What is called, or the answer's kind of error.
fn ask(desk: &mut ToolDesk, request: &Value) -> Result<Value, String> {
    match desk.take(request.to_string().as_bytes()) {
        DeskStep::Call(call) | DeskStep::Ask(call) => Ok(call.parameters),
        DeskStep::Answer(answer) => {
            let answer: Value = serde_json::from_slice(&answer).expect("JSON");
            Err(answer["error"]["kind"].as_str().unwrap_or("result").to_owned())
        }
    }
}

fn call(desk: &mut ToolDesk, parameters: Value) -> Result<Value, String> {
    ask(desk, &json!({"form": "json", "tool": "pay", "parameters": parameters}))
}

#[test]
fn schema_then_grant_then_count() {
    let mut desk = desk("pay where amount <= 10 calls 2", None).expect("a desk");
    let kind = |kind: &str| Err(kind.to_owned());
    assert_eq!(call(&mut desk, json!({"amount": 10})), Ok(json!({"amount": 10})));
    assert_eq!(call(&mut desk, json!({"amount": 11})), kind("refused"));
    assert_eq!(call(&mut desk, json!({"amount": -1})), kind("invalid"));
    assert_eq!(call(&mut desk, json!({"amount": 1, "more": 1})), kind("invalid"));
    assert_eq!(call(&mut desk, json!([])), kind("invalid"));
    assert_eq!(call(&mut desk, Value::Null), kind("invalid"));
    assert_eq!(call(&mut desk, json!({"amount": 9})), Ok(json!({"amount": 9})));
    assert_eq!(call(&mut desk, json!({"amount": 1})), kind("refused"));
    let uses = desk.uses();
    assert_eq!((uses[0].calls, uses[0].refused, uses[1].calls), (2, 6, 0));
}

#[test]
fn what_the_judge_read_is_what_is_passed_on() {
    let mut desk = desk("pay where amount <= 10", None).expect("a desk");
    // Twice the same name: whoever reads the first one sees another amount than whoever reads the last one.
    let twice = br#"{"form":"json","tool":"pay","parameters":{"amount":9000,"amount":1}}"#;
    let DeskStep::Call(call) = desk.take(twice) else {
        panic!("it is granted as it was read")
    };
    assert_eq!(call.parameters.to_string(), r#"{"amount":1}"#);
    let other_way = br#"{"form":"json","tool":"pay","parameters":{"amount":1,"amount":9000}}"#;
    assert!(matches!(desk.take(other_way), DeskStep::Answer(_)));
}

#[test]
fn narrowed_grants_hold_as_well_and_have_to_be_narrower() {
    let mut narrow = desk(
        "pay where amount <= 10 calls 2",
        Some(&["pay where amount < 5 calls 1"]),
    )
    .expect("a desk");
    assert!(call(&mut narrow, json!({"amount": 5})).is_err());
    assert!(call(&mut narrow, json!({"amount": 4})).is_ok());
    assert!(call(&mut narrow, json!({"amount": 4})).is_err());
    // Not named in them, so not granted.
    assert_eq!(
        ask(&mut narrow, &json!({"form": "json", "tool": "crm.find-one"})),
        Err("refused".to_owned())
    );
    for wider in [
        "pay",
        "pay where amount <= 10",
        "ship",
        "pay where amount <= 10 calls 3",
    ] {
        let refused = desk("pay where amount <= 10 calls 2", Some(&[wider]));
        assert!(matches!(refused, Err(ToolSetupError::Wider(_))), "{wider}");
    }
}

#[test]
fn a_tool_has_its_name_and_that_of_its_function() {
    let mut desk = desk("pay", None).expect("a desk");
    for name in ["crm.find-one", "crm_find_one"] {
        assert!(
            ask(
                &mut desk,
                &json!({"form": "json", "tool": name, "parameters": {"x": 1}})
            )
            .is_ok()
        );
    }
    assert_eq!(
        ask(&mut desk, &json!({"form": "json", "tool": "ship"})),
        Err("unknown_tool".to_owned())
    );
    assert_eq!(ask(&mut desk, &json!({"form": "list"})), Err("result".to_owned()));
    let twice = vec![tool("a-b", json!({}), "a-b"), tool("a.b", json!({}), "a.b")];
    assert_eq!(
        ToolDesk::new(twice, None).expect_err("one name"),
        ToolSetupError::Twice("a_b".to_owned())
    );
}

#[test]
fn commands_are_answered_as_commands() {
    let mut desk = desk("pay where amount <= 10", None).expect("a desk");
    let mut command = |arguments: Value| {
        let request = json!({"form": "command", "tool": "pay", "arguments": arguments});
        match desk.take(request.to_string().as_bytes()) {
            DeskStep::Ask(_) => panic!("nobody is asked"),
            DeskStep::Call(call) => {
                let bytes = desk.answer(&call, &Ok(json!({"paid": call.parameters["amount"]})));
                let answer = CommandAnswer::of(&bytes).expect("an answer");
                (answer.status, String::from_utf8_lossy(answer.stdout).into_owned())
            }
            DeskStep::Answer(bytes) => {
                let answer = CommandAnswer::of(&bytes).expect("an answer");
                (
                    answer.status,
                    String::from_utf8_lossy(&[answer.stdout, answer.stderr].concat()).into_owned(),
                )
            }
        }
    };
    assert_eq!(command(json!(["--amount", "3"])), (0, "{\"paid\":3}\n".to_owned()));
    let refused = "pay: refused: its parameters have to be such that amount <= 10\n";
    assert_eq!(command(json!(["--amount", "30"])), (126, refused.to_owned()));
    assert_eq!(command(json!(["--amount", "x"])).0, 2);
    assert!(
        command(json!(["--help"]))
            .1
            .starts_with("Does it.\n\nusage: pay --amount NUMBER [--to STRING]")
    );
}

#[test]
fn what_is_no_request_is_answered_so() {
    let mut desk = desk("pay", None).expect("a desk");
    let deep = "[".repeat(100_000);
    for request in [
        "",
        "{",
        "[]",
        "null",
        "{\"form\":\"json\"}",
        "{\"form\":\"list\",\"x\":1}",
        "\u{0}",
        &deep,
    ] {
        let DeskStep::Answer(answer) = desk.take(request.as_bytes()) else {
            panic!("{request} is a call")
        };
        assert!(String::from_utf8_lossy(&answer).contains("\"invalid\""));
    }
}

#[test]
fn schemas_that_are_none_are_refused_before_anything_is_offered() {
    for schema in ["", "1", "{\"type\": 5}", "{\"$ref\": \"https://example.com/x.json\"}"] {
        let mut wrong = pay("pay");
        schema.clone_into(&mut wrong.parameters);
        assert!(
            matches!(ToolDesk::new(vec![wrong], None), Err(ToolSetupError::Schema { .. })),
            "{schema}"
        );
    }
    let many = (0..=MAX_TOOLS)
        .map(|number| tool(&format!("t{number}"), json!({}), "*"))
        .collect();
    assert!(matches!(ToolDesk::new(many, None), Err(ToolSetupError::TooMany { .. })));
}
