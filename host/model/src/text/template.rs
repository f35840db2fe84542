//! Chat templates: Jinja as transformers sets it up, on minijinja.
//!
//! Same whitespace rules, loop controls, Python string methods, `tojson`, `raise_exception`, `strftime_now` and
//! `{% generation %}` tags. The one deliberate difference: an empty list of tools is no tools.

use super::{clock::Moment, json};
use crate::{Error, ModelFiles, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{AutoEscape, Environment, ErrorKind};
use minijinja_contrib::pycompat;
use serde_json::{Map, Value};
use slime_core::{Message, Tool};

const DEFAULT: &str = "default";
/// The template that is taken when there are tools, in files with several.
const TOOL_USE: &str = "tool_use";

/// A model's chat template or templates, compiled.
pub struct ChatTemplate {
    env: Environment<'static>,
    specials: Map<String, Value>,
}

impl ChatTemplate {
    /// The template among a model's files, where there is one: `chat_template.jinja`, else that of
    /// `chat_template.json`, else that of `tokenizer_config.json`. `specials` are `bos_token` and its like.
    ///
    /// # Errors
    /// It does not compile.
    pub fn find(files: &ModelFiles, specials: Map<String, Value>) -> Result<Option<Self>> {
        if let Some(source) = files.text("chat_template.jinja")? {
            return Self::new(
                &files.path("chat_template.jinja"),
                &[(DEFAULT, source)],
                specials,
            )
            .map(Some);
        }
        for file in ["chat_template.json", "tokenizer_config.json"] {
            let Some(json) = files.json(file)? else {
                continue;
            };
            let named = match &json["chat_template"] {
                Value::String(source) => vec![(DEFAULT, source.as_str())],
                Value::Array(list) => list
                    .iter()
                    .filter_map(|t| Some((t["name"].as_str()?, t["template"].as_str()?)))
                    .collect(),
                _ => continue,
            };
            return Self::new(&files.path(file), &named, specials).map(Some);
        }
        Ok(None)
    }

    /// Compile named templates; `file` names them in errors.
    ///
    /// # Errors
    /// One of them does not compile, or there is none for conversations without tools.
    pub fn new(file: &str, named: &[(&str, &str)], specials: Map<String, Value>) -> Result<Self> {
        let mut env = environment(Moment::now());
        for (name, source) in named {
            env.add_template_owned(
                name.to_string(),
                without_generation_tags(&unix_lines(source)),
            )
            .map_err(|e| Error::Text {
                file: file.into(),
                detail: format!("the chat template does not compile: {}", words(&e)),
            })?;
        }
        if env.get_template(DEFAULT).is_err() {
            let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
            let detail = format!(
                "no chat template is named \"{DEFAULT}\", only: {}",
                names.join(", ")
            );
            return Err(Error::Text {
                file: file.into(),
                detail,
            });
        }
        Ok(Self { env, specials })
    }

    /// The conversation as text.
    ///
    /// # Errors
    /// The template's own words, or what it could not do.
    pub fn render(
        &self,
        messages: &[Message],
        tools: &[Tool],
        add_generation_prompt: bool,
        kwargs: &Map<String, Value>,
    ) -> Result<String, String> {
        let mut context = self.specials.clone();
        context.insert("documents".into(), Value::Null);
        context.extend(kwargs.clone());
        let messages = serde_json::to_value(messages).map_err(|e| e.to_string())?;
        context.insert("messages".into(), messages);
        let tools = if tools.is_empty() {
            Value::Null
        } else {
            Value::Array(tools.to_vec())
        };
        let name = if tools.is_null() { DEFAULT } else { TOOL_USE };
        context.insert("tools".into(), tools);
        context.insert("add_generation_prompt".into(), add_generation_prompt.into());
        let template = self
            .env
            .get_template(name)
            .or_else(|_| self.env.get_template(DEFAULT));
        template
            .and_then(|t| t.render(Serde(&context)))
            .map_err(|e| words(&e))
    }
}

fn jinja_syntax() -> SyntaxConfig {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .expect("the default delimiters are valid")
}

fn environment(now: Moment) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_syntax(jinja_syntax());
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(pycompat::unknown_method_callback);
    env.add_filter("tojson", to_json);
    // For Python `None` is not iterable; minijinja iterates it as nothing.
    env.add_test("iterable", |value: &minijinja::Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    env.add_function(
        "raise_exception",
        |message: String| -> Result<minijinja::Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    env.add_function("strftime_now", move |format: String| now.format(&format));
    env
}

/// `tojson` with the arguments transformers' has.
fn to_json(
    value: &minijinja::Value,
    indent: Option<minijinja::Value>,
    kwargs: Kwargs,
) -> Result<minijinja::Value, minijinja::Error> {
    let refuse = |detail: &str| {
        minijinja::Error::new(ErrorKind::InvalidOperation, format!("tojson: {detail}"))
    };
    if value.is_undefined() {
        return Err(refuse("the value is undefined"));
    }
    let indent = match indent
        .or(kwargs.get::<Option<minijinja::Value>>("indent")?)
        .filter(|i| !i.is_none())
    {
        None => None,
        Some(indent) => match (indent.as_str(), indent.as_usize()) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Some(width)) => Some(" ".repeat(width)),
            (None, None) => return Err(refuse("indent must be a number or a string")),
        },
    };
    let style = json::Style {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: match kwargs
            .get::<Option<minijinja::Value>>("separators")?
            .filter(|s| !s.is_none())
        {
            None => None,
            Some(pair) => {
                let item = |i| {
                    pair.get_item_by_index(i)
                        .ok()
                        .and_then(|s| s.as_str().map(str::to_owned))
                };
                Some(
                    item(0)
                        .zip(item(1))
                        .ok_or_else(|| refuse("separators must be two strings"))?,
                )
            }
        },
        indent,
    };
    kwargs.assert_all_used()?;
    let value = serde_json::to_value(value).map_err(|e| refuse(&e.to_string()))?;
    Ok(minijinja::Value::from(json::dumps(&value, &style)))
}

/// An error's own words and the line, without minijinja's framing.
fn words(error: &minijinja::Error) -> String {
    let text = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    match error.line() {
        Some(line) => format!("{text} (template line {line})"),
        None => text,
    }
}

/// Jinja reads every line end as `\n`.
fn unix_lines(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// `{% generation %}` marks what an assistant wrote, for masks computed from text. Ours come from tokens, so the tags
/// become blocks without effect, their whitespace control kept.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inner = &tag[2..end];
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            "generation" => out.push_str(&format!("{{%{}%}}", inner.replace(word, "if true"))),
            "endgeneration" => out.push_str(&format!("{{%{}%}}", inner.replace(word, "endif"))),
            _ => out.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str, kwargs: Value) -> Result<String, String> {
        let template = ChatTemplate::new("test", &[(DEFAULT, source)], Map::new()).unwrap();
        let messages = [
            Message::new("user", "hi"),
            Message {
                content: Value::Null,
                ..Message::new("assistant", "")
            },
        ];
        template.render(&messages, &[], true, kwargs.as_object().unwrap())
    }

    #[test]
    fn tojson_writes_what_pythons_json_writes() {
        let x = json!({"b": [1, 2.0, 1e-5, 1e16, -0.5], "a": "é <&> \"'\\\n\u{1}\u{7f}", "n": null, "t": true, "e": {}, "l": []});
        assert_eq!(
            render("{{ x | tojson }}", json!({"x": x})).unwrap(),
            "{\"b\": [1, 2.0, 1e-05, 1e+16, -0.5], \"a\": \"é <&> \\\"'\\\\\\n\\u0001\u{7f}\", \"n\": null, \"t\": true, \"e\": {}, \"l\": []}"
        );
        assert_eq!(
            render(
                "{{ x | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}",
                json!({"x": {"b": "é😀", "a": 1}})
            ),
            Ok("{\"a\":1,\"b\":\"\\u00e9\\ud83d\\ude00\"}".into())
        );
        assert_eq!(
            render(
                "{{ x | tojson(indent=2) }}",
                json!({"x": {"a": [1, {}], "b": {"c": []}}})
            ),
            Ok("{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": {\n    \"c\": []\n  }\n}".into())
        );
    }

    #[test]
    fn values_print_as_python_prints_them() {
        assert_eq!(
            render("{{ messages[1].content }} {{ true }} {{ 1.0 }}", json!({})),
            Ok("None True 1.0".into())
        );
        assert_eq!(render("[{{ nothing }}]", json!({})), Ok("[]".into()));
        assert_eq!(
            render("{{ x }}", json!({"x": {"a": ["b", null]}})),
            Ok("{'a': ['b', None]}".into())
        );
    }

    #[test]
    fn a_template_that_refuses_is_quoted_in_its_own_words() {
        let error =
            render("\n{{ raise_exception('roles must alternate') }}", json!({})).unwrap_err();
        assert_eq!(error, "roles must alternate (template line 2)");
        assert!(render("{{ 'a' + messages[1].content }}", json!({})).is_err());
    }

    #[test]
    fn generation_tags_leave_text_and_whitespace_alone() {
        let tagged = "a\n  {%- generation -%}\n b {{ 1 }}\n{% endgeneration %}\nc";
        let plain = "a\n  {%- if true -%}\n b {{ 1 }}\n{% endif %}\nc";
        assert_eq!(render(tagged, json!({})), render(plain, json!({})));
        assert_eq!(render(tagged, json!({})), Ok("ab 1\nc".into()));
    }

    #[test]
    fn line_ends_of_windows_are_read_as_line_ends() {
        assert_eq!(
            render(
                "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\n{{ '\\r' }}c",
                json!({})
            ),
            Ok("a\nb\n\rc".into())
        );
    }

    #[test]
    fn none_is_not_iterable_and_undefined_is() {
        let source = "{{ messages[1].content is iterable }} {{ nothing is iterable }} {{ 'ab' is iterable }} {{ 1 is iterable }}";
        assert_eq!(
            render(source, json!({})),
            Ok("False True True False".into())
        );
    }

    #[test]
    fn a06_no_tools_and_an_empty_list_render_alike() {
        let source = "{% if tools is not none %}TOOLS{% endif %}{{ documents is none }}";
        assert_eq!(render(source, json!({})), Ok("True".into()));
    }

    #[test]
    fn of_several_templates_the_one_for_tools_is_taken_with_tools() {
        let mut files = ModelFiles::new("dir");
        files.insert_json(
            "tokenizer_config.json",
            &json!({"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]}),
        );
        let template = ChatTemplate::find(&files, Map::new()).unwrap().unwrap();
        assert_eq!(
            template.render(&[], &[], true, &Map::new()),
            Ok("plain".into())
        );
        assert_eq!(
            template.render(&[], &[json!({})], true, &Map::new()),
            Ok("tools".into())
        );
    }

    #[test]
    fn a_template_that_does_not_compile_names_its_file_and_line() {
        let mut files = ModelFiles::new("dir");
        files.insert("chat_template.jinja", "a\n{% if %}");
        let error = ChatTemplate::find(&files, Map::new())
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.starts_with("dir/chat_template.jinja: the chat template does not compile: "),
            "{error}"
        );
        assert!(error.ends_with("(template line 2)"), "{error}");
    }

    #[test]
    fn dates_come_from_strftime_now() {
        let date = render("{{ strftime_now('%Y-%m-%d') }}", json!({})).unwrap();
        assert_eq!((date.len(), &date[..2]), (10, "20"));
    }
}
