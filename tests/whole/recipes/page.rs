//! The recipes of a Markdown page: its code blocks, and the commands in the last column of its
//! tables.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A piece of code that a reader would copy.
#[derive(Debug, Default)]
pub(crate) struct Recipe {
    /// The heading above it.
    pub(crate) heading: String,
    /// The language of its block; `sh` for a command in a table.
    pub(crate) language: String,
    pub(crate) text: String,
}

/// Reads the recipes of a page in order.
#[derive(Debug, Default)]
struct Reader {
    recipes: Vec<Recipe>,
    heading: String,
    in_heading: bool,
    in_block: bool,
    /// The column of the table's row, and the first code in that cell.
    column: usize,
    command: Option<String>,
}

pub(crate) fn recipes(page: &str) -> Vec<Recipe> {
    let mut reader = Reader::default();
    for event in Parser::new_ext(page, Options::ENABLE_TABLES) {
        reader.read(event);
    }
    reader.recipes
}

impl Reader {
    fn read(&mut self, event: Event<'_>) {
        match event {
            Event::Start(Tag::Heading { .. }) => {
                self.heading.clear();
                self.in_heading = true;
            }
            Event::End(TagEnd::Heading(_)) => self.in_heading = false,
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                self.in_block = true;
                self.push(&language, "");
            }
            Event::End(TagEnd::CodeBlock) => self.in_block = false,
            Event::Text(text) if self.in_heading => self.heading.push_str(&text),
            Event::Text(text) if self.in_block => {
                self.recipes.last_mut().unwrap().text.push_str(&text);
            }
            Event::Start(Tag::TableRow) => self.column = 0,
            Event::Start(Tag::TableCell) => self.command = None,
            Event::Code(code) if self.command.is_none() => self.command = Some(code.into_string()),
            Event::End(TagEnd::TableCell) => self.column += 1,
            Event::End(TagEnd::TableRow) if self.column > 1 => {
                if let Some(command) = self.command.take() {
                    self.push("sh", &format!("{command}\n"));
                }
            }
            _ => {}
        }
    }

    fn push(&mut self, language: &str, text: &str) {
        self.recipes.push(Recipe {
            heading: self.heading.clone(),
            language: language.to_owned(),
            text: text.to_owned(),
        });
    }
}

#[test]
fn blocks_and_the_last_column_of_tables_are_recipes() {
    let page = "# One\n```sh\na\n```\n## Two\n|x|y|\n|-|-|\n|`b`|`c \\| d`|\n|`e`|f|\n";
    let seen: Vec<_> = recipes(page)
        .into_iter()
        .map(|recipe| format!("{} {} {}", recipe.heading, recipe.language, recipe.text.trim()))
        .collect();
    assert_eq!(seen, ["One sh a", "Two sh c | d"]);
}
