use offleash_core::build::{BuildStep, CopySource, CopyStep, StepAction};
use proptest::prelude::*;

use super::*;

fn plan_with(text: &str, options: &DockerfileOptions) -> Result<DockerfilePlan, DockerfileError> {
    let env = |base: &BuildBase| match base {
        BuildBase::Image(name) if name == "python:3" => vec![("PATH".to_owned(), "/bin".to_owned())],
        _ => Vec::new(),
    };
    Dockerfile::parse(text, options)?.plan(&env)
}

fn plan(text: &str) -> DockerfilePlan {
    plan_with(text, &DockerfileOptions::default()).unwrap()
}

fn args(pairs: &[(&str, &str)]) -> DockerfileOptions {
    let owned = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    DockerfileOptions {
        build_args: owned.collect(),
        target: None,
    }
}

/// The steps of the last stage.
fn steps(text: &str) -> Vec<StepAction> {
    let stage = plan(text).plan.stages.pop().unwrap();
    stage.steps.into_iter().map(|step: BuildStep| step.action).collect()
}

fn run(action: &StepAction) -> Vec<&str> {
    match action {
        StepAction::Run(run) => run.command.iter().map(String::as_str).collect(),
        other => panic!("{other:?}"),
    }
}

fn copy(action: &StepAction) -> &CopyStep {
    match action {
        StepAction::Copy(copy) => copy,
        other => panic!("{other:?}"),
    }
}

#[test]
fn instructions_mean_steps() {
    let text = "ARG V=3\nFROM python:${V} AS base\nENV PATH=/x:$PATH A=\"b c\"\nENV OLD way of $A\nWORKDIR /a$A\nUSER 7:8\n\
                RUN echo $A\nRUN [\"ls\", \"$A\"]\nSHELL [\"/bin/bash\", \"-ec\"]\nRUN x\nCMD y\nENTRYPOINT [\"e\"]\n\
                LABEL a=b \"c d\"=e\nEXPOSE 80\nEXPOSE 81\nVOLUME /v\n";
    let planned = plan(text);
    assert_eq!(planned.plan.stages[0].base, BuildBase::Image("python:3".to_owned()));
    assert_eq!(
        planned.notes,
        ["`EXPOSE` changes nothing here", "`VOLUME` changes nothing here"]
    );
    let steps = steps(text);
    let env = |name: &str, value: &str| StepAction::Env {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    assert_eq!(steps[0], env("PATH", "/x:/bin"));
    assert_eq!(steps[1], env("A", "b c"));
    assert_eq!(steps[2], env("OLD", "way of b c"));
    assert_eq!(steps[3], StepAction::Workdir("/ab c".to_owned()));
    assert_eq!(steps[4], StepAction::User("7:8".to_owned()));
    assert_eq!(run(&steps[5]), ["/bin/sh", "-c", "echo $A"]);
    assert_eq!(run(&steps[6]), ["ls", "$A"]);
    assert_eq!(run(&steps[7]), ["/bin/bash", "-ec", "x"]);
    assert_eq!(
        steps[8],
        StepAction::Command(["/bin/bash", "-ec", "y"].map(str::to_owned).to_vec())
    );
    assert_eq!(steps[9], StepAction::Entrypoint(vec!["e".to_owned()]));
    assert_eq!(steps.len(), 12);
}

#[test]
fn a_run_sees_the_arguments_that_were_declared_before_it_and_no_others() {
    let text = "ARG G=global\nARG H\nFROM a\nARG G\nRUN 1\nARG A=x$G B\nARG H=own\nENV A=env\nRUN 2\n";
    let seen = |options: &DockerfileOptions| {
        let stage = plan_with(text, options).unwrap().plan.stages.remove(0);
        let arguments = stage.steps.into_iter().filter_map(|step| match step.action {
            StepAction::Run(run) => Some(run.arguments),
            _ => None,
        });
        let shown = |arguments: Vec<(String, String)>| {
            let pairs: Vec<String> = arguments
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            pairs.join(" ")
        };
        arguments.map(shown).collect::<Vec<_>>()
    };
    assert_eq!(seen(&args(&[])), ["G=global", "G=global H=own"]);
    assert_eq!(
        seen(&args(&[("B", "b"), ("G", "g"), ("A", "a")])),
        ["G=g", "G=g B=b H=own"]
    );
    let other = plan_with(text, &args(&[("NONE", "x")])).unwrap();
    assert!(other.notes[0].contains("NONE"), "{:?}", other.notes);
    assert_eq!(
        plan("FROM a\nARG TARGETARCH\nENV X=$TARGETARCH\n").plan.stages[0].steps[0].title,
        "ENV X"
    );
}

#[test]
fn files_are_copied_from_the_context_stages_bases_and_the_file_itself() {
    let text = "FROM a AS One\nFROM b\nFROM scratch\nARG D=/dest\nCOPY --chown=app:7 --chmod=0640 --link x \"y z\" $D/\n\
                ADD [\"a b.tar\", \"/c\"]\nCOPY --from=one /x /y\nCOPY --from=0 /x /y\nCOPY --from=busybox:1 /x /y\n\
                COPY --from=template://tools /x /y\nCOPY <<A <<'B' k $D/\n$D\nA\n$D\nB\n";
    let all = steps(text);
    let first = copy(&all[0]);
    assert_eq!(first.sources, ["x", "y z"]);
    assert_eq!(
        (first.destination.as_str(), first.owner.as_deref()),
        ("/dest/", Some("app:7"))
    );
    assert_eq!((first.mode, first.extracts), (Some(0o640), false));
    assert_eq!(copy(&all[1]).sources, ["a b.tar"]);
    assert!(copy(&all[1]).extracts);
    let from = |step: usize| copy(&all[step]).from.clone();
    assert_eq!(from(2), CopySource::Base(BuildBase::Stage(0)));
    assert_eq!(from(3), from(2));
    assert_eq!(from(4), CopySource::Base(BuildBase::Image("busybox:1".to_owned())));
    assert_eq!(from(5), CopySource::Base(BuildBase::Template("tools".parse().unwrap())));
    let CopySource::Inline(files) = from(6) else {
        panic!("{:?}", all[6])
    };
    let told: Vec<(&str, &str)> = files
        .iter()
        .map(|file| (file.name.as_str(), file.text.as_str()))
        .collect();
    assert_eq!(told, [("A", "/dest\n"), ("B", "$D\n")]);
    assert_eq!(copy(&all[7]).sources, ["k"]);
}

#[test]
fn here_documents_of_a_run_are_scripts_or_input() {
    let all = steps(
        "FROM a\nRUN <<EOF\na\nb $X\nEOF\nRUN cat <<-E >/x && y\n\tz\n\tE\nRUN <<'P'\n#!/usr/bin/python3\nprint(1)\nP\n",
    );
    assert_eq!(run(&all[0]), ["/bin/sh", "-c", "a\nb $X\n"]);
    assert_eq!(run(&all[1]), ["/bin/sh", "-c", "cat <<-E >/x && y\n\tz\nE\n"]);
    let script = run(&all[2])[2];
    assert!(
        script.contains("\n#!/usr/bin/python3\nprint(1)\nOFFLEASH_END\n"),
        "{script}"
    );
}

#[test]
fn only_the_stages_that_the_target_needs_are_built() {
    let text = "FROM a AS one\nRUN 1\nFROM b AS two\nRUN 2\nFROM one AS three\nCOPY --from=two x y\nFROM c AS four\n";
    let target = |name: &str| DockerfileOptions {
        target: Some(name.to_owned()),
        ..DockerfileOptions::default()
    };
    let planned = plan_with(text, &target("THREE")).unwrap().plan;
    assert_eq!(planned.stages.len(), 3);
    assert_eq!(planned.stages[2].base, BuildBase::Stage(0));
    assert_eq!(
        copy(&planned.stages[2].steps[0].action).from,
        CopySource::Base(BuildBase::Stage(1))
    );
    assert_eq!(plan(text).plan.stages.len(), 1);
    let bases = |name: &str| {
        let dockerfile = Dockerfile::parse(text, &target(name)).unwrap();
        let bases = dockerfile.bases().unwrap();
        bases.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        (bases("three"), bases("four"), bases("one")),
        ("a b".into(), "c".into(), "a".into())
    );
    assert!(plan_with(text, &target("five")).is_err());
}

#[test]
fn what_is_not_understood_is_an_error_with_its_line() {
    for (text, line, told) in [
        ("", 0, "no `FROM`"),
        ("RUN x", 1, "before the first"),
        ("FROM a\nFOO x", 2, "`FOO` is no instruction"),
        ("FROM a\n\n# c\nRUN", 4, "says nothing"),
        ("FROM a b", 1, "FROM IMAGE"),
        ("FROM $NONE", 1, "not set"),
        ("FROM --platform=linux/arm64 a", 1, "not supported"),
        ("FROM a\nADD https://x.test/y /z", 2, "of an address"),
        ("FROM a\nADD git@x.test:y /z", 2, "of an address"),
        ("FROM a\nCOPY x", 2, "a destination"),
        ("FROM a\nCOPY --parents x /y", 2, "--parents"),
        ("FROM a\nADD --from=0 x /y", 2, "--from"),
        ("FROM a\nCOPY --chmod=u+x x /y", 2, "--chmod=u+x"),
        ("FROM a\nCOPY --from=3 x /y", 2, "no stage `3`"),
        ("FROM a\nCOPY --from=0 x /y", 2, "no stage `0`"),
        ("FROM a\nONBUILD RUN x", 2, "`ONBUILD`"),
        ("FROM a\nRUN --mount=type=secret,id=x y", 2, "--mount"),
        ("FROM a\nRUN --network=host y", 2, "--network=host"),
        ("FROM a\nSHELL sh", 2, "`SHELL`"),
        ("FROM a\nENV A", 2, "NAME=VALUE"),
        ("FROM a\nENV A=1 B", 2, "no value"),
        ("FROM a\nENV A=${B", 2, "`${B`"),
        ("FROM template://UPPER", 1, "UPPER"),
    ] {
        let error = plan_with(text, &DockerfileOptions::default()).expect_err(text);
        assert_eq!(error.line, line, "{text}");
        assert!(error.fault.to_string().contains(told), "{text}: {}", error.fault);
    }
    let cache = plan("FROM a\nRUN --mount=type=cache,target=/root/.cache pip install x\n");
    assert!(cache.notes[0].contains("type=cache"));
}

proptest! {
    #[test]
    fn no_text_is_a_panic(
        lines in proptest::collection::vec(
            prop_oneof![
                "(FROM|RUN|COPY|ADD|ENV|ARG|WORKDIR|SHELL|CMD|LABEL) [a-z$ {}=\\\\\"'<\\[\\]-]{0,20}",
                "[ -~]{0,20}",
                Just("FROM a".to_owned()),
            ],
            0..8,
        ),
    ) {
        let _planned = plan_with(&lines.join("\n"), &DockerfileOptions::default());
    }

    #[test]
    fn a_name_and_value_come_back_however_they_are_quoted(value in "([a-zA-Z0-9 _./:-]{0,30}[a-z])?") {
        for text in [format!("ENV A=\"{value}\""), format!("ENV A='{value}'"), format!("ENV A={}", value.replace(' ', "\\ "))] {
            let found = steps(&format!("FROM a\n{text}"));
            prop_assert_eq!(&found[0], &StepAction::Env { name: "A".to_owned(), value: value.clone() });
        }
    }
}
