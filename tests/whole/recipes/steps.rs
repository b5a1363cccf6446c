//! The commands of a CI server's configuration, each as that server passes it to a shell.

use std::fs;

use serde_json::Value;

/// A command of a step, and its variables in addition to the environment.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) variables: Vec<(String, String)>,
    pub(crate) script: String,
    /// The command that an action runs when the job ends, however it ends.
    pub(crate) post: Option<String>,
}

impl Step {
    /// A command without variables.
    pub(crate) fn plain(script: &str) -> Self {
        Self { variables: Vec::new(), script: script.to_owned(), post: None }
    }
}

/// The commands in a file of GitHub Actions, GitLab CI or Buildkite.
pub(crate) fn of_yaml(text: &str) -> Vec<Step> {
    let file: Value = serde_yaml_ng::from_str(text).unwrap();
    let mut steps = Vec::new();
    if let Some(list) = file["steps"].as_array() {
        for step in list {
            steps.extend(of_step(step));
        }
    } else {
        for job in file.as_object().unwrap().values() {
            let lines = job["script"].as_array().unwrap();
            steps.extend(lines.iter().map(|line| Step::plain(text_of(line))));
        }
    }
    steps
}

fn of_step(step: &Value) -> Vec<Step> {
    match (&step["run"], &step["command"], &step["uses"]) {
        (Value::String(run), _, _) => vec![Step::plain(run)],
        (_, Value::String(command), _) => vec![Step::plain(command)],
        (_, _, Value::String(action)) => of_action(action, &step["with"]),
        _ => panic!("a step without a command: {step}"),
    }
}

/// The step of an action of this repository, with its inputs as the runner passes them.
fn of_action(folder: &str, with: &Value) -> Vec<Step> {
    let folder = format!("{}/{folder}", env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| fs::read_to_string(format!("{folder}/{name}")).unwrap();
    let action: Value = serde_yaml_ng::from_str(&read("action.yml")).unwrap();
    let inputs = action["inputs"].as_object().unwrap();
    let unknown = with.as_object().unwrap().keys().find(|name| !inputs.contains_key(*name));
    assert_eq!(unknown, None, "the action has no such input");
    let filled = |(name, input): (&String, &Value)| {
        let value = match (&with[name], &input["default"]) {
            (Value::Null, Value::Null) => panic!("the input {name} is not given"),
            (Value::Null, default) => scalar(default),
            (given, _) => scalar(given),
        };
        (format!("INPUT_{}", name.to_uppercase()), value)
    };
    // The file is not in the namespaces of the recipe.
    let node = |name: &str| {
        let program = read(text_of(&action["runs"][name]));
        format!("cat >{name}.js <<'END OF PROGRAM'\n{program}END OF PROGRAM\nnode {name}.js\n")
    };
    let variables = inputs.iter().map(filled).collect();
    vec![Step { variables, script: node("main"), post: Some(node("post")) }]
}

/// The commands of a Jenkinsfile: the quoted text after `sh`.
pub(crate) fn of_jenkins(text: &str) -> Vec<Step> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("sh '"));
    lines.map(|line| Step::plain(line.strip_suffix('\'').unwrap())).collect()
}

/// The command of a service.
pub(crate) fn of_unit(text: &str) -> Vec<Step> {
    text.lines().filter_map(|line| line.strip_prefix("ExecStart=")).map(Step::plain).collect()
}

#[track_caller]
fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// An input as the text that the runner makes of it.
fn scalar(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
