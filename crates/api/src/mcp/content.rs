//! What came of code or a command, as content for a model: bounded, and marked where something is left out.

use offleash_core::exec::OutputStream;
use offleash_interpreter::cell::CellError;
use offleash_interpreter::result::{CellResult, ResultForm};
use rmcp::model::ContentBlock;

use super::kept::{KeptText, cut};

/// The most images of one result, and the most that one may have, in bytes of base64.
const MAX_IMAGES: usize = 16;
const MAX_IMAGE_BYTES: usize = 4 * 1024 * 1024;
/// The most values of one result that are shown.
const MAX_VALUES: usize = 64;

/// Images that hosts show, the best first.
const IMAGES: [&str; 2] = ["image/png", "image/jpeg"];
/// Other forms of a value, the one that says most to a model first.
const TEXTS: [&str; 6] = [
    "text/markdown",
    "text/plain",
    "application/json",
    "text/latex",
    "image/svg+xml",
    "text/html",
];

/// What was written and shown so far.
#[derive(Debug, Default)]
pub(super) struct ToolOutcome {
    stdout: KeptText,
    stderr: KeptText,
    values: Vec<ContentBlock>,
    images: Vec<ContentBlock>,
    /// What is said at the end, a line each.
    said: Vec<String>,
    shown_values: usize,
    last: Option<OutputStream>,
}

impl ToolOutcome {
    pub(super) fn output(&mut self, stream: OutputStream, bytes: &[u8]) {
        self.last = Some(stream);
        match stream {
            OutputStream::Stdout => self.stdout.take(bytes),
            OutputStream::Stderr => self.stderr.take(bytes),
        }
    }

    /// The line that was written last.
    pub(super) fn last_line(&self) -> Option<String> {
        match self.last? {
            OutputStream::Stdout => self.stdout.last_line(),
            OutputStream::Stderr => self.stderr.last_line(),
        }
    }

    pub(super) fn say(&mut self, line: impl Into<String>) {
        self.said.push(line.into());
    }

    pub(super) fn error(&mut self, error: &CellError) {
        let traceback = without_colours(&error.traceback);
        let text = match traceback.trim() {
            "" => format!("{}: {}", error.name, error.value),
            traceback => traceback.to_owned(),
        };
        self.said.push(cut(&text));
    }

    /// A value that code has or displays: its image if it has one, otherwise the text that says most.
    pub(super) fn value(&mut self, mut value: CellResult) {
        self.shown_values += 1;
        if self.shown_values > MAX_VALUES {
            return;
        }
        for (mime, bytes) in &value.omitted {
            self.said
                .push(format!("[{mime} of {bytes} bytes is left out: it is too large]"));
        }
        for mime in IMAGES {
            if let Some(ResultForm::Text(data)) = value.forms.remove(mime) {
                self.image(mime, data);
                return;
            }
        }
        for mime in TEXTS {
            match value.forms.remove(mime) {
                Some(ResultForm::Text(text)) => return self.values.push(ContentBlock::text(cut(&text))),
                Some(ResultForm::Json(json)) => return self.values.push(ContentBlock::text(cut(&json.to_string()))),
                None => {}
            }
        }
    }

    fn image(&mut self, mime: &str, data: String) {
        // Drivers write base64 in lines.
        let data: String = data.split_ascii_whitespace().collect();
        if data.len() > MAX_IMAGE_BYTES {
            let size = data.len() / 4 * 3;
            self.said.push(format!(
                "[an image of {size} bytes is left out: save it to a file, or make it smaller]"
            ));
        } else if self.images.len() >= MAX_IMAGES {
            self.said
                .push(format!("[an image is left out: one call shows {MAX_IMAGES}]"));
        } else {
            self.images.push(ContentBlock::image(data, mime.to_owned()));
        }
    }

    /// All of it; there is always something.
    pub(super) fn into_content(self) -> Vec<ContentBlock> {
        let mut content = Vec::new();
        if !self.stdout.is_empty() {
            content.push(ContentBlock::text(self.stdout.into_text()));
        }
        if !self.stderr.is_empty() {
            content.push(ContentBlock::text(format!(
                "standard error:\n{}",
                self.stderr.into_text()
            )));
        }
        content.extend(self.values);
        content.extend(self.images);
        if self.shown_values > MAX_VALUES {
            let more = self.shown_values - MAX_VALUES;
            content.push(ContentBlock::text(format!("[{more} more values are left out]")));
        }
        if !self.said.is_empty() {
            content.push(ContentBlock::text(self.said.join("\n")));
        }
        if content.is_empty() {
            content.push(ContentBlock::text("(no output)"));
        }
        content
    }
}

/// Text without the sequences that colour a terminal (ECMA-48, CSI).
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' && characters.peek() == Some(&'[') {
            characters.next();
            // Parameters and what is between them, then one character that says what to do.
            while characters
                .next_if(|next| ('\u{20}'..='\u{3f}').contains(next))
                .is_some()
            {}
            characters.next_if(|next| ('\u{40}'..='\u{7e}').contains(next));
        } else {
            plain.push(character);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(forms: &[(&str, &str)]) -> CellResult {
        let forms = forms
            .iter()
            .map(|(mime, text)| ((*mime).to_owned(), ResultForm::Text((*text).to_owned())));
        CellResult {
            forms: forms.collect(),
            ..CellResult::default()
        }
    }

    fn texts(outcome: ToolOutcome) -> Vec<String> {
        let content = outcome.into_content().into_iter();
        content
            .map(|block| {
                serde_json::to_value(block).unwrap()["text"]
                    .as_str()
                    .unwrap_or("image")
                    .to_owned()
            })
            .collect()
    }

    #[test]
    fn an_image_stands_for_the_text_of_its_value() {
        let mut outcome = ToolOutcome::default();
        outcome.value(value(&[("text/plain", "<Figure>"), ("image/png", "iVBO\nRw0K")]));
        outcome.value(value(&[("text/plain", "1"), ("text/html", "<b>1</b>")]));
        assert_eq!(texts(outcome), ["1", "image"]);
    }

    #[test]
    fn what_is_too_much_is_said_to_be_left_out() {
        let mut outcome = ToolOutcome::default();
        for _ in 0..MAX_IMAGES + 1 {
            outcome.value(value(&[("image/png", "AAAA")]));
        }
        outcome.value(value(&[("image/png", &"A".repeat(MAX_IMAGE_BYTES + 4))]));
        for _ in 0..MAX_VALUES {
            outcome.value(value(&[("text/plain", "x")]));
        }
        let texts = texts(outcome);
        assert_eq!(texts.iter().filter(|text| *text == "image").count(), MAX_IMAGES);
        assert!(texts.iter().any(|text| text.contains("one call shows")));
        assert!(texts.iter().any(|text| text.contains("make it smaller")));
        assert!(texts.iter().any(|text| text.contains("18 more values")));
    }

    #[test]
    fn there_is_always_something() {
        assert_eq!(texts(ToolOutcome::default()), ["(no output)"]);
    }

    #[test]
    fn tracebacks_have_no_colours() {
        assert_eq!(
            without_colours("\u{1b}[0;31mName\u{1b}[39;49;00mError\u{1b}[m \u{1b}x"),
            "NameError \u{1b}x"
        );
    }
}
