//! A prompt file as a source: read once, checked whole, drawn from in any order.

use super::rows::{self, Row};
use super::{PathSlice, RowKeys, permutation};
use crate::{RolloutError, lock};
use slime_core::Prompt;
use slime_core::ports::{BoxFuture, Source, SourceError};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Orders kept: the sampler works at an epoch's end on two of them at once.
const EPOCHS_KEPT: usize = 2;

/// Prompts of one JSONL or parquet file.
pub struct PromptFile {
    name: String,
    prompts: Vec<Prompt>,
    shuffle: bool,
    orders: Mutex<VecDeque<Order>>,
}

struct Order {
    seed: u64,
    epoch: u64,
    rows: Arc<Vec<u32>>,
}

impl PromptFile {
    /// Read every row of `file` (a path, or `path@[a:b]`) and check it.
    ///
    /// # Errors
    /// A file that cannot be read or has no rows; the first row that is not JSON, lacks a key, or holds
    /// the wrong kind of value, by file and row number.
    pub fn open(
        name: &str,
        file: &str,
        keys: &RowKeys,
        shuffle: bool,
    ) -> Result<Self, RolloutError> {
        let slice = PathSlice::parse(file)?;
        let rows = rows::read(&slice)?;
        if u32::try_from(rows.len()).is_err() {
            return Err(RolloutError::File {
                path: slice.path,
                reason: "has more than 2^32 rows; split it".into(),
            });
        }
        let prompt = |row: Row| {
            let (number, line) = (row.row, row.line);
            keys.prompt(name, row).map_err(|reason| RolloutError::Row {
                path: slice.path.clone(),
                row: number,
                line,
                reason,
            })
        };
        let prompts = rows.into_iter().map(prompt).collect::<Result<_, _>>()?;
        Ok(Self {
            name: name.to_owned(),
            prompts,
            shuffle,
            orders: Mutex::default(),
        })
    }

    /// Every prompt, in the file's order.
    pub fn prompts(&self) -> &[Prompt] {
        &self.prompts
    }

    fn order(&self, seed: u64, epoch: u64) -> Arc<Vec<u32>> {
        let mut orders = lock(&self.orders);
        if let Some(order) = orders.iter().find(|o| (o.seed, o.epoch) == (seed, epoch)) {
            return Arc::clone(&order.rows);
        }
        let len = u32::try_from(self.prompts.len()).expect("open refuses longer files");
        let rows = Arc::new(permutation(seed, &self.name, epoch, len));
        orders.push_back(Order {
            seed,
            epoch,
            rows: Arc::clone(&rows),
        });
        if orders.len() > EPOCHS_KEPT {
            orders.pop_front();
        }
        rows
    }
}

impl Source for PromptFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> Option<u64> {
        Some(self.prompts.len() as u64)
    }

    fn draw(&self, index: u64, seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>> {
        let len = self.prompts.len() as u64;
        let place = (index % len) as usize;
        let row = if self.shuffle {
            self.order(seed, index / len)[place] as usize
        } else {
            place
        };
        Box::pin(std::future::ready(Ok(self.prompts[row].clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_json::ReaderBuilder;
    use futures::executor::block_on;
    use parquet::arrow::ArrowWriter;
    use slime_core::PromptBody;
    use std::io::BufReader;

    fn write(name: &str, text: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap().to_owned();
        (dir, path)
    }

    fn keys() -> RowKeys {
        RowKeys {
            input: "q".into(),
            label: Some("a".into()),
            ..RowKeys::default()
        }
    }

    #[test]
    fn a_row_holds_text_or_messages_with_label_metadata_and_tools() {
        let (_dir, path) = write(
            "p.jsonl",
            "\u{FEFF}{\"q\": \"two?\", \"a\": 2, \"metadata\": {\"level\": 1}}\r\n\n\
             {\"q\": [{\"role\": \"user\", \"content\": \"hi\", \"name\": \"z\"}], \"a\": \"x\", \"tools\": \"[{\\\"type\\\": \\\"function\\\"}]\"}\n\
             {\"q\": \"\", \"a\": null, \"metadata\": null, \"tools\": []}\n",
        );
        let file = PromptFile::open(
            "s",
            &path,
            &RowKeys {
                apply_chat_template: true,
                ..keys()
            },
            false,
        )
        .unwrap();
        let [first, second, third] = file.prompts() else {
            panic!("three rows")
        };
        assert_eq!(
            first.body,
            PromptBody::Messages(vec![slime_core::Message::new("user", "two?")])
        );
        assert_eq!(
            (first.label.as_deref(), &first.metadata["level"]),
            (Some("2"), &1.into())
        );
        let PromptBody::Messages(messages) = &second.body else {
            panic!("messages")
        };
        assert_eq!(
            (messages[0].text(), &messages[0].extra["name"]),
            ("hi", &"z".into())
        );
        assert_eq!((second.tools.len(), second.id.row), (1, 1));
        assert_eq!(
            (&third.label, third.tools.len(), third.metadata.len()),
            (&None, 0, 0)
        );

        let plain = PromptFile::open("s", &format!("{path}@[:1]"), &keys(), false).unwrap();
        assert_eq!(plain.prompts()[0].body, PromptBody::Text("two?".into()));
    }

    #[test]
    fn a_row_without_the_key_fails_with_its_number_and_the_keys_it_has() {
        let (_dir, path) = write(
            "p.jsonl",
            "{\"q\": \"1\", \"a\": \"1\"}\n\n{\"question\": \"2\", \"a\": \"2\"}\n",
        );
        let message = PromptFile::open("s", &path, &keys(), false)
            .err()
            .unwrap()
            .to_string();
        assert!(
            message.contains("p.jsonl: row 1 (line 3): no key `q`; the row has `question`, `a`"),
            "{message}"
        );
        assert!(message.contains("--input-key"), "{message}");

        let missing_label = RowKeys {
            label: Some("gold".into()),
            ..keys()
        };
        let message = PromptFile::open("s", &path, &missing_label, false)
            .err()
            .unwrap()
            .to_string();
        assert!(
            message.contains("row 0 (line 1): no key `gold`") && message.contains("--label-key"),
            "{message}"
        );
    }

    #[test]
    fn broken_json_and_wrong_kinds_fail_with_their_row() {
        for (line, says) in [
            ("{\"q\": ", "row 0 (line 1): is not JSON"),
            ("[1]", "not an object"),
            ("{\"q\": 3, \"a\": 1}", "`q` is a number"),
            ("{\"q\": [], \"a\": 1}", "empty list"),
            (
                "{\"q\": [{\"content\": \"x\"}], \"a\": 1}",
                "item 0 is not a message",
            ),
            (
                "{\"q\": \"x\", \"a\": 1, \"metadata\": 3}",
                "metadata must be an object",
            ),
            (
                "{\"q\": \"x\", \"a\": 1, \"tools\": \"no\"}",
                "tools must be a list",
            ),
        ] {
            let (_dir, path) = write("p.jsonl", line);
            let message = PromptFile::open("s", &path, &keys(), false)
                .err()
                .unwrap()
                .to_string();
            assert!(message.contains(says), "{line}: {message}");
        }
    }

    #[test]
    fn a_file_without_rows_is_refused() {
        let (_dir, path) = write("p.jsonl", "\n  \n");
        let message = PromptFile::open("s", &path, &keys(), false)
            .err()
            .unwrap()
            .to_string();
        assert!(message.contains("no rows"), "{message}");
        let (_dir, path) = write("p.jsonl", "{\"q\": \"x\", \"a\": 1}\n");
        let message = PromptFile::open("s", &format!("{path}@[1:]"), &keys(), false)
            .err()
            .unwrap()
            .to_string();
        assert!(message.contains("no rows in the slice [1:]"), "{message}");
        let message = PromptFile::open("s", "prompts.csv", &keys(), false)
            .err()
            .unwrap()
            .to_string();
        assert!(message.contains(".jsonl or .parquet"), "{message}");
    }

    #[test]
    fn i15_exotic_separators_do_not_split_a_record() {
        let (_dir, path) = write(
            "p.jsonl",
            "{\"q\": \"a\u{2028}b\u{85}c\u{2029}d\", \"a\": \"1\"}\n",
        );
        let file = PromptFile::open("s", &path, &keys(), false).unwrap();
        assert_eq!(
            file.prompts()[0].body,
            PromptBody::Text("a\u{2028}b\u{85}c\u{2029}d".into())
        );
    }

    #[test]
    fn parquet_rows_equal_the_same_rows_as_jsonl() {
        let text = "{\"q\": [{\"role\": \"user\", \"content\": \"one\"}], \"a\": \"1\", \"metadata\": {\"k\": 5}}\n\
                    {\"q\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"two\"}], \"a\": null, \"metadata\": {\"k\": 6}}\n\
                    {\"q\": [{\"role\": \"user\", \"content\": \"three\"}], \"a\": \"3\", \"metadata\": {\"k\": 7}}\n";
        let (dir, jsonl) = write("p.jsonl", text);
        let parquet = dir.path().join("p.parquet");
        let (schema, _) =
            arrow_json::reader::infer_json_schema(BufReader::new(text.as_bytes()), None).unwrap();
        let schema = Arc::new(schema);
        let batch = ReaderBuilder::new(Arc::clone(&schema))
            .build(text.as_bytes())
            .unwrap()
            .next()
            .unwrap()
            .unwrap();
        let mut writer =
            ArrowWriter::try_new(std::fs::File::create(&parquet).unwrap(), schema, None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();

        for slice in ["", "@[1:]", "@[-1:]", "@[:2]"] {
            let a = PromptFile::open("s", &format!("{jsonl}{slice}"), &keys(), false).unwrap();
            let b = PromptFile::open(
                "s",
                &format!("{}{slice}", parquet.display()),
                &keys(),
                false,
            )
            .unwrap();
            assert_eq!(a.prompts(), b.prompts(), "{slice}");
        }
        let wrong = RowKeys {
            input: "nope".into(),
            ..keys()
        };
        let message = PromptFile::open("s", parquet.to_str().unwrap(), &wrong, false)
            .err()
            .unwrap()
            .to_string();
        assert!(message.contains("row 0: no key `nope`"), "{message}");
        std::fs::write(&parquet, "PAR1 not really").unwrap();
        let message = PromptFile::open("s", parquet.to_str().unwrap(), &keys(), false)
            .err()
            .unwrap()
            .to_string();
        assert!(message.contains("not a readable parquet file"), "{message}");
    }

    #[test]
    fn i01_any_draw_can_be_made_again_without_the_ones_before() {
        let text: String = (0..7)
            .map(|i| format!("{{\"q\": \"{i}\", \"a\": \"{i}\"}}\n"))
            .collect();
        let (_dir, path) = write("p.jsonl", &text);
        let first = PromptFile::open("s", &path, &keys(), true).unwrap();
        let all: Vec<_> = (0..21)
            .map(|i| block_on(first.draw(i, 9)).unwrap().id.row)
            .collect();
        let again = PromptFile::open("s", &path, &keys(), true).unwrap();
        for i in [20, 3, 13, 0, 7, 19] {
            assert_eq!(block_on(again.draw(i, 9)).unwrap().id.row, all[i as usize]);
        }
        for epoch in all.chunks(7) {
            let mut rows = epoch.to_vec();
            rows.sort_unstable();
            assert_eq!(rows, (0..7).collect::<Vec<_>>());
        }
        assert_ne!(all[..7], all[7..14]);
        assert_eq!(first.len(), Some(7));
    }
}
