//! As much of a shell's language as the pages use.

/// The simple commands of a text of shell, each as its words. Comments and redirections are left out, `$(…)` is a command of its
/// own and the word `X` where it stands.
pub fn commands(text: &str) -> Vec<Vec<String>> {
    let mut reader = Reader { rest: text.chars().collect(), ..Reader::default() };
    reader.rest.reverse();
    reader.read();
    reader.commands
}

#[derive(Default)]
struct Reader {
    /// What is left, the next letter last.
    rest: Vec<char>,
    word: Option<String>,
    words: Vec<String>,
    commands: Vec<Vec<String>>,
    /// The next word is the file of a redirection.
    redirected: bool,
}

impl Reader {
    fn read(&mut self) {
        while let Some(letter) = self.rest.pop() {
            match letter {
                '\'' => self.quoted(),
                '"' => self.double_quoted(),
                '$' if self.rest.last() == Some(&'(') => self.substitution(),
                '\\' => {
                    let next = self.rest.pop().filter(|next| *next != '\n');
                    self.word.get_or_insert_default().extend(next);
                }
                '#' if self.word.is_none() => {
                    while self.rest.last().is_some_and(|next| *next != '\n') {
                        self.rest.pop();
                    }
                }
                '>' | '<' => {
                    self.end_word();
                    self.redirected = true;
                }
                '|' | '&' | ';' | '\n' | '(' | ')' => self.end_command(),
                letter if letter.is_whitespace() => self.end_word(),
                letter => self.word.get_or_insert_default().push(letter),
            }
        }
        self.end_command();
    }

    fn quoted(&mut self) {
        let word = self.word.get_or_insert_default();
        while let Some(letter) = self.rest.pop().filter(|letter| *letter != '\'') {
            word.push(letter);
        }
    }

    fn double_quoted(&mut self) {
        self.word.get_or_insert_default();
        while let Some(letter) = self.rest.pop().filter(|letter| *letter != '"') {
            match letter {
                '$' if self.rest.last() == Some(&'(') => self.substitution(),
                letter => self.word.get_or_insert_default().push(letter),
            }
        }
    }

    fn substitution(&mut self) {
        let (mut inner, mut depth) = (String::new(), 0);
        while let Some(letter) = self.rest.pop() {
            depth += i32::from(letter == '(') - i32::from(letter == ')');
            if depth == 0 {
                break;
            }
            inner.push(letter);
        }
        self.commands.extend(commands(&inner[1..]));
        self.word.get_or_insert_default().push('X');
    }

    fn end_word(&mut self) {
        if let Some(word) = self.word.take()
            && !std::mem::take(&mut self.redirected)
        {
            self.words.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        if !self.words.is_empty() {
            self.commands.push(std::mem::take(&mut self.words));
        }
    }
}

/// What is typed in a block: behind its prompts where it has some (the rest is what comes), else all of it.
pub fn typed(block: &str) -> String {
    const PROMPTS: [&str; 4] = ["$ ", "# ", "old$ ", "new$ "];
    let behind = |line: &str| PROMPTS.iter().find_map(|prompt| line.strip_prefix(prompt).map(str::to_owned));
    if !block.lines().any(|line| behind(line).is_some()) {
        return block.to_owned();
    }
    let (mut text, mut open) = (String::new(), false);
    for line in block.lines() {
        let Some(line) = (if open { Some(line.to_owned()) } else { behind(line) }) else { continue };
        text += &format!("{line}\n");
        // A text in quotes goes on in the next line.
        open = text.lines().next_back().is_some_and(|line| line.ends_with('\\')) || text.matches('\'').count() % 2 == 1;
    }
    text
}

#[test]
fn a_text_of_shell_is_read_as_a_shell_does() {
    let said = |text: &str| commands(text).iter().map(|words| words.join("_")).collect::<Vec<_>>();
    assert_eq!(said("a b  # c\nd 'e f' \"g h\" > i j"), ["a_b", "d_e f_g h_j"]);
    assert_eq!(said("a | b && c; d\\\n e"), ["a", "b", "c", "d_e"]);
    assert_eq!(said("a \"$(b 'c' \"$d\")\"/e $(f)"), ["b_c_$d", "f", "a_X/e_X"]);
    assert_eq!(said("a#b {\"c\":'d'}"), ["a#b_{c:d}"]);
    assert_eq!(typed("$ a 'b\n  c' d\nwhat comes\n# e\n"), "a 'b\n  c' d\ne\n");
    assert_eq!(typed("a\nb\n"), "a\nb\n");
}
