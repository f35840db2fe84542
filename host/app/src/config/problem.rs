//! What is wrong with a configuration: every problem at once, each with its place and its cure.

use miette::{Diagnostic, LabeledSpan, NamedSource, Severity, SourceCode, SourceSpan};
use std::fmt;
use std::sync::Arc;

/// Where a value was said.
#[derive(Clone, Debug)]
pub struct Place {
    /// A file's name, or `environment`, `--set`, `command line`.
    pub name: String,
    /// All of the text.
    pub text: Arc<str>,
    /// The bytes that are meant.
    pub span: std::ops::Range<usize>,
}

/// One problem.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What is wrong, in one sentence.
    pub message: String,
    /// The cure.
    pub help: Option<String>,
    // Boxed: problems travel in results whose other side is small.
    place: Option<Box<(NamedSource<Arc<str>>, SourceSpan)>>,
}

impl Problem {
    /// A problem with no single place.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            help: None,
            place: None,
        }
    }

    /// Add the cure.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Add the place.
    #[must_use]
    pub fn at(mut self, place: Option<Place>) -> Self {
        self.place =
            place.map(|p| Box::new((NamedSource::new(p.name, p.text), SourceSpan::from(p.span))));
        self
    }

    /// Where its place begins, for putting the problems of one text in order.
    pub fn offset(&self) -> usize {
        self.place.as_ref().map_or(0, |place| place.1.offset())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

impl Diagnostic for Problem {
    fn severity(&self) -> Option<Severity> {
        Some(Severity::Error)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help
            .as_ref()
            .map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref().map(|place| &place.0 as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let (_, span) = &**self.place.as_ref()?;
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(
            None, *span,
        ))))
    }
}

/// Every problem found before anything started.
#[derive(Clone, Debug)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0[..] {
            [problem] => problem.fmt(f),
            all => write!(f, "{} problems; nothing was started", all.len()),
        }
    }
}

impl std::error::Error for Problems {}

impl Diagnostic for Problems {
    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        Some(Box::new(
            self.0.iter().map(|problem| problem as &dyn Diagnostic),
        ))
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}
