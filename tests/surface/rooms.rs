//! The layout of the sources: files do not import each other in circles, sibling rooms have an
//! order, and no folder has more files than a reader can see at a glance.
//!
//! `cargo test --test surface rooms:: -- --ignored --nocapture` prints how large the sources are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemUse, UseTree, Visibility};

/// The maximum number of files in a folder.
const FILES_MAX: usize = 12;

/// The packages below `crates`, without `canal-`.
static PACKAGES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let folders = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("crates")).unwrap();
    let names = folders.map(|folder| folder.unwrap().file_name().into_string().unwrap());
    names.map(|name| name.strip_prefix("canal-").unwrap().to_owned()).collect()
});

/// The name of a module: the names after `crate`, for another package after its name.
type Module = Vec<String>;

/// The imports and exports of a file.
#[derive(Default)]
struct Source {
    /// The paths that the file uses, each starting at its own module.
    uses: BTreeSet<Vec<String>>,
    /// The names that it re-exports, and their origins.
    reexports: BTreeMap<String, Vec<String>>,
    /// The inherent methods that the file defines.
    methods: BTreeSet<Method>,
    /// The methods that those call on the same value.
    calls: BTreeSet<Method>,
    /// The modules that the file declares only for tests.
    for_tests: Vec<String>,
    /// How many lines contain code.
    lines: usize,
}

/// The name of a type, and of one of its inherent methods.
type Method = (String, String);

/// Collects the paths of one file, without those of its tests.
#[derive(Default)]
struct Collector {
    source: Source,
    /// The type whose inherent methods are being read.
    of: Option<String>,
}

impl Collector {
    fn note_call(&mut self, method: &syn::Ident) {
        if let Some(of) = &self.of {
            self.source.calls.insert((of.clone(), method.to_string()));
        }
    }
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        match item {
            _ if !is_for_tests(attributes) => visit::visit_item(self, item),
            Item::Mod(item) => self.source.for_tests.push(item.ident.to_string()),
            _ => {}
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_reexport = !matches!(item.vis, Visibility::Inherited);
        for (path, name) in paths_of(&item.tree) {
            if is_reexport {
                self.source.reexports.insert(name, path);
            } else {
                self.source.uses.insert(path);
            }
        }
    }

    fn visit_expr(&mut self, expression: &'ast syn::Expr) {
        let attributes = match expression {
            syn::Expr::If(expression) => &expression.attrs,
            syn::Expr::Block(expression) => &expression.attrs,
            _ => return visit::visit_expr(self, expression),
        };
        if !is_for_tests(attributes) {
            visit::visit_expr(self, expression);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let outer = self.of.take();
        if let (None, syn::Type::Path(of)) = (&item.trait_, &*item.self_ty) {
            self.of = of.path.segments.last().map(|segment| segment.ident.to_string());
        }
        visit::visit_item_impl(self, item);
        self.of = outer;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if is_for_tests(&item.attrs) {
            return;
        }
        if let Some(of) = &self.of {
            self.source.methods.insert((of.clone(), item.sig.ident.to_string()));
        }
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if let syn::Expr::Path(receiver) = &*call.receiver
            && (receiver.path.is_ident("self") || receiver.path.is_ident("server"))
        {
            self.note_call(&call.method);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !is_for_tests(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !is_for_tests(&arm.attrs) {
            visit::visit_arm(self, arm);
        }
    }

    // `pub(super)` imports nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string());
        self.source.uses.insert(names.collect());
        if let [of, method, ..] = &*path.segments.iter().collect::<Vec<_>>()
            && of.ident == "Self"
        {
            self.note_call(&method.ident);
        }
        visit::visit_path(self, path);
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let words = attribute.meta.require_list().map(|list| list.tokens.to_string());
        attribute.path().is_ident("cfg")
            && words.is_ok_and(|words| words == "test" || words.starts_with("any (test ,"))
    })
}

/// Each path of a `use`, and its name there.
fn paths_of(tree: &UseTree) -> Vec<(Vec<String>, String)> {
    match tree {
        UseTree::Path(path) => {
            let below = paths_of(&path.tree).into_iter().map(|(mut names, known)| {
                names.insert(0, path.ident.to_string());
                (names, known)
            });
            below.collect()
        }
        UseTree::Name(name) if name.ident == "self" => vec![(Vec::new(), String::new())],
        UseTree::Name(name) => vec![(vec![name.ident.to_string()], name.ident.to_string())],
        UseTree::Rename(name) => vec![(vec![name.ident.to_string()], name.rename.to_string())],
        UseTree::Glob(_) => vec![(Vec::new(), "*".to_owned())],
        UseTree::Group(group) => group.items.iter().flat_map(paths_of).collect(),
    }
}

/// All modules of the packages that have their own files, except those only for tests. The root of
/// `crates/canal-core` is the module `core`, as its package calls it.
fn read(root: &Path) -> BTreeMap<Module, Source> {
    let mut files = Vec::new();
    files_below(&root.join("src"), &mut files);
    files_below(&root.join("crates"), &mut files);
    let (mut modules, mut for_tests) = (BTreeMap::new(), Vec::<Module>::new());
    for file in files {
        let module = module_of(file.strip_prefix(root).unwrap());
        let text = fs::read_to_string(&file).unwrap();
        let below = |name| module.iter().cloned().chain([name]).collect::<Module>();
        let source = source_of(&text);
        for_tests.extend(source.for_tests.iter().cloned().map(below));
        modules.insert(module, source);
    }
    modules.retain(|module, _| !for_tests.iter().any(|test| module.starts_with(test)));
    modules
}

/// All modules of this program, shared by several tests.
static SOURCES: LazyLock<BTreeMap<Module, Source>> =
    LazyLock::new(|| read(Path::new(env!("CARGO_MANIFEST_DIR"))));

fn source_of(text: &str) -> Source {
    let mut collector = Collector::default();
    collector.visit_file(&syn::parse_file(text).unwrap());
    let are_tests = |line: &str| line.ends_with("mod tests {") && !line.starts_with(' ');
    let own = text.lines().take_while(|line| !are_tests(line)).map(str::trim);
    let lines = own.filter(|line| !line.is_empty() && !line.starts_with("//")).count();
    Source { lines, ..collector.source }
}

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
}

fn module_of(file: &Path) -> Module {
    let file = file.with_extension("");
    let names: Vec<_> = file.iter().map(|name| name.to_str().unwrap()).collect();
    let mut names: Module = match &names[..] {
        ["crates", package, "src", rest @ ..] => {
            let package = package.strip_prefix("canal-").unwrap();
            [package].iter().chain(rest).map(|name| (*name).to_owned()).collect()
        }
        [_, rest @ ..] => rest.iter().map(|name| (*name).to_owned()).collect(),
        [] => Module::new(),
    };
    if names.last().is_some_and(|last| last == "mod" || last == "lib") {
        names.pop();
    }
    names
}

/// The module to which a path leads from another module, through re-exports.
fn resolve(modules: &BTreeMap<Module, Source>, from: &Module, path: &[String]) -> Option<Module> {
    let (mut at, mut rest) = start(modules, from, path)?;
    loop {
        let Some((name, below)) = rest.split_first() else { return Some(at) };
        let child: Module = at.iter().chain([name]).cloned().collect();
        if modules.contains_key(&child) {
            (at, rest) = (child, below.to_vec());
            continue;
        }
        let Some(origin) = modules[&at].reexports.get(name) else { return Some(at) };
        let (module, mut names) = start(modules, &at, origin)?;
        names.extend_from_slice(below);
        (at, rest) = (module, names);
    }
}

/// The module at the root of a module's package.
fn package_of(module: &Module) -> Module {
    let package = module.first().filter(|name| PACKAGES.contains(*name));
    package.into_iter().cloned().collect()
}

/// The module in which a path starts, and the rest of the path.
fn start(
    modules: &BTreeMap<Module, Source>,
    from: &Module,
    path: &[String],
) -> Option<(Module, Vec<String>)> {
    let (first, rest) = path.split_first()?;
    let ups = path.iter().take_while(|name| *name == "super").count();
    match first.as_str() {
        "crate" => Some((package_of(from), rest.to_vec())),
        "self" => Some((from.clone(), rest.to_vec())),
        "super" => Some((from[..from.len().checked_sub(ups)?].to_vec(), path[ups..].to_vec())),
        // A single name is a variable, or belongs to this file.
        _ if rest.is_empty() => None,
        _ => {
            let child: Module = from.iter().chain([first]).cloned().collect();
            modules.contains_key(&child).then(|| (from.clone(), path.to_vec()))
        }
    }
}

/// Each import: a module, and a module that it uses.
fn imports(modules: &BTreeMap<Module, Source>) -> BTreeSet<(&Module, &Module)> {
    let mut imports = BTreeSet::new();
    for (module, source) in modules {
        for path in &source.uses {
            let Some(used) = resolve(modules, module, path) else { continue };
            let (used, _) = modules.get_key_value(&used).unwrap();
            if used != module {
                imports.insert((module, used));
            }
        }
    }
    imports
}

/// The groups of elements that use each other in a circle.
fn circles<T: Copy + Ord + Hash>(uses: impl Iterator<Item = (T, T)>) -> Vec<Vec<T>> {
    let mut graph = DiGraphMap::<T, ()>::new();
    for (one, used) in uses {
        graph.add_edge(one, used, ());
    }
    tarjan_scc(&graph).into_iter().filter(|circle| circle.len() > 1).collect()
}

/// The circles of files, except those of a folder's own file and one file in that folder.
fn circles_of_files(modules: &BTreeMap<Module, Source>) -> Vec<Vec<String>> {
    let is_of_a_folder = |circle: &[&Module]| match circle {
        [one, other] => one.starts_with(other) || other.starts_with(one),
        _ => false,
    };
    let circles = circles(imports(modules).into_iter()).into_iter();
    let circles = circles.filter(|circle| !is_of_a_folder(circle));
    circles.map(|it| it.into_iter().map(|module| module.join("/")).collect()).collect()
}

/// The circles of rooms: of sibling files and folders, each with everything below it.
fn circles_of_rooms(modules: &BTreeMap<Module, Source>) -> Vec<Vec<String>> {
    let mut uses: BTreeMap<&[String], BTreeSet<(&str, &str)>> = BTreeMap::new();
    for (module, used) in imports(modules) {
        let shared = module.iter().zip(used).take_while(|(one, other)| one == other).count();
        if let (Some(room), Some(other)) = (module.get(shared), used.get(shared)) {
            uses.entry(&module[..shared]).or_default().insert((room, other));
        }
    }
    let of_folder = |(folder, uses): (&[String], BTreeSet<_>)| {
        let path = |room: &str| [folder, &[room.to_owned()]].concat().join("/");
        let circles = circles(uses.into_iter()).into_iter();
        circles.map(|circle| circle.into_iter().map(path).collect()).collect::<Vec<_>>()
    };
    uses.into_iter().flat_map(of_folder).collect()
}

/// The circles of files in which inherent methods of a type call those of another file.
fn circles_of_calls(modules: &BTreeMap<Module, Source>) -> Vec<(&str, Vec<&Module>)> {
    let mut defined: BTreeMap<&Method, Vec<&Module>> = BTreeMap::new();
    for (module, source) in modules {
        source.methods.iter().for_each(|it| defined.entry(it).or_default().push(module));
    }
    let mut calls: BTreeMap<&str, BTreeSet<(&Module, &Module)>> = BTreeMap::new();
    for (module, source) in modules {
        for method in &source.calls {
            // Types of the same name can have methods of the same name.
            if let Some([other]) = defined.get(method).map(Vec::as_slice)
                && *other != module
            {
                calls.entry(&method.0).or_default().insert((module, *other));
            }
        }
    }
    let of_type = |(of, calls): (_, BTreeSet<_>)| {
        circles(calls.into_iter()).into_iter().map(move |circle| (of, circle))
    };
    calls.into_iter().flat_map(of_type).collect()
}

#[test]
fn methods_of_files_call_each_other_in_no_circles() {
    let circles = circles_of_calls(&SOURCES);
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
#[ignore = "prints how large the sources are"]
fn figures() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lines: usize = SOURCES.values().map(|source| source.lines).sum();
    let mut files = Vec::new();
    files_below(&root.join("src"), &mut files);
    files_below(&root.join("crates"), &mut files);
    let folders: BTreeSet<_> = files.iter().filter_map(|file| file.parent()).collect();
    println!("lines of code, without tests, comments and blank lines: {lines}");
    println!("files {}, folders {}", files.len(), folders.len());
    println!("circles of files by imports: {}", circles_of_files(&SOURCES).len());
    for (of, circle) in circles_of_calls(&SOURCES) {
        println!("a circle of {} files by calls of methods of {of}", circle.len());
    }
    println!("crates that a program with canal-lock compiles: {}", crates_of_the_library());
}

/// How many crates cargo compiles for a program that depends on `canal-lock`.
fn crates_of_the_library() -> usize {
    let tree = ["tree", "--locked", "--package", "canal-lock", "--edges", "normal,build"];
    let format = ["--prefix", "none", "--no-dedupe", "--format", "{p}"];
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(tree).args(format).current_dir(env!("CARGO_MANIFEST_DIR"));
    let tree = cargo.output().unwrap();
    assert!(tree.status.success(), "{tree:?}");
    let crates = tree.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    crates.collect::<BTreeSet<_>>().len()
}

#[test]
fn a_program_that_takes_locks_compiles_at_most_30_crates() {
    let crates = crates_of_the_library();
    assert!((10..=30).contains(&crates), "{crates}");
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let circles = circles_of_files(&SOURCES);
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn rooms_beside_each_other_use_each_other_in_one_direction() {
    let circles = circles_of_rooms(&SOURCES);
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn circles_are_found_through_groups_paths_and_reexports() {
    let files = [
        ("a", "use crate::{b::{self, X}, d}; #[cfg(test)] mod tests { use crate::e; }"),
        ("b", "pub use c::X;"),
        ("b/c", "fn f(d: super::super::d::D) {}"),
        ("d", "fn f() { crate::a::g(); }"),
        ("e", "use crate::a::A;"),
        ("f", ""),
        ("f/g", "use crate::h::j::J;"),
        ("h", ""),
        ("h/i", "use crate::f::g::G;"),
        ("h/j", ""),
        ("k", "use l::L;"),
        ("k/l", "use super::K;"),
    ];
    let module = |name: &str| name.split('/').map(str::to_owned).collect::<Module>();
    let mut modules: BTreeMap<Module, Source> =
        files.iter().map(|(name, text)| (module(name), source_of(text))).collect();
    modules.insert(Module::new(), Source::default());
    let sorted = |mut circles: Vec<Vec<String>>| {
        circles.iter_mut().for_each(|circle| circle.sort());
        circles.sort();
        circles
    };
    assert_eq!(sorted(circles_of_files(&modules)), [["a", "b/c", "d"]]);
    assert_eq!(sorted(circles_of_rooms(&modules)), [vec!["a", "b", "d"], vec!["f", "h"]]);
}

#[test]
fn circles_of_methods_are_found_over_files() {
    let files = [
        ("a", "impl A { fn one(&self) { self.two(); } } impl B { fn x() { Self::y(); } }"),
        ("b", "impl A { fn two(&self) { self.other.one(); server.three(); } }"),
        ("c", "impl A { fn three(&self) { [1].map(Self::one); } }"),
        ("d", "impl B { fn y() {} } impl C for B { fn f(&self) { self.x(); } }"),
        ("e", "impl B { #[cfg(test)] fn z() { Self::x(); } }"),
    ];
    let modules = files.map(|(name, text)| (vec![name.to_owned()], source_of(text)));
    let modules = BTreeMap::from(modules);
    let mut circles = circles_of_calls(&modules);
    circles.iter_mut().for_each(|(_, circle)| circle.sort());
    assert_eq!(circles.len(), 1);
    assert_eq!(
        (circles[0].0, circles[0].1.iter().map(|it| it.join("/")).collect::<Vec<_>>().join(" ")),
        ("A", "a b c".to_owned())
    );
}

#[test]
fn no_folder_has_more_than_a_dozen_files_beside_each_other() {
    let mut files = Vec::new();
    for tree in ["benches", "crates", "src", "tests"] {
        files_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join(tree), &mut files);
    }
    let mut folders: BTreeMap<&Path, usize> = BTreeMap::new();
    for file in &files {
        *folders.entry(file.parent().unwrap()).or_default() += 1;
    }
    folders.retain(|_, count| *count > FILES_MAX);
    assert!(folders.is_empty(), "{folders:#?}");
}

/// The files of the modules that a file declares.
fn modules_declared_in(file: &Path) -> Vec<PathBuf> {
    let folder = file.parent().unwrap();
    let name = file.file_stem().unwrap().to_str().unwrap();
    let is_root = matches!(name, "main" | "mod") || folder.ends_with("tests");
    let below = if is_root { folder.to_owned() } else { folder.join(name) };
    let mut found = Vec::new();
    for item in syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap().items {
        let Item::Mod(module) = item else { continue };
        if module.content.is_some() {
            continue;
        }
        let path = module.attrs.iter().filter(|it| it.path().is_ident("path")).find_map(|it| {
            let syn::Expr::Lit(value) = &it.meta.require_name_value().unwrap().value else {
                return None;
            };
            if let syn::Lit::Str(path) = &value.lit {
                Some(folder.join(path.value()))
            } else {
                None
            }
        });
        let usual = || {
            let file = below.join(format!("{}.rs", module.ident));
            if file.exists() { file } else { below.join(module.ident.to_string()).join("mod.rs") }
        };
        found.push(path.unwrap_or_else(usual).canonicalize().unwrap());
    }
    found
}

/// The compiler ignores a file that no module names, and with it the file's tests.
#[test]
fn each_file_of_the_tests_belongs_to_a_test_program() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").canonicalize().unwrap();
    let mut files = Vec::new();
    files_below(&tests, &mut files);
    let is_program = |file: &&PathBuf| {
        let folder = file.parent().unwrap();
        folder == tests || file.ends_with("main.rs") && folder.parent() == Some(&tests)
    };
    let mut next: Vec<PathBuf> = files.iter().filter(is_program).cloned().collect();
    let mut found = BTreeSet::new();
    while let Some(file) = next.pop() {
        if found.insert(file.clone()) {
            next.extend(modules_declared_in(&file));
        }
    }
    let forgotten: Vec<_> = files.iter().filter(|file| !found.contains(*file)).collect();
    assert!(found.len() > 200 && forgotten.is_empty(), "{forgotten:#?}");
}

/// It gets the time and the kernel's data about processes from `sys`. A descriptor has a type and a
/// signal has a name.
#[test]
fn the_server_of_the_daemon_does_no_input_or_output_itself() {
    const NAMES: [&str; 2] = ["std::os::fd", "nix::sys::signal::Signal"];
    let begins = |path: &[String], with: &str| {
        path.iter().map(String::as_str).zip(with.split("::")).filter(|(a, b)| a == b).count()
            == with.split("::").count()
    };
    let does_io = |path: &[String]| {
        let outside = [
            "std::fs",
            "std::net",
            "std::os",
            "std::process",
            "std::thread",
            "nix",
            "libc",
            "rustix",
        ];
        outside.iter().any(|with| begins(path, with))
            && !NAMES.iter().any(|with| begins(path, with))
    };
    let is_of_server =
        |(module, _): &(&Module, _)| module.starts_with(&["daemon", "server"].map(str::to_owned));
    let server = SOURCES.iter().filter(is_of_server);
    let found = server.map(|(module, source)| (module, &source.uses));
    let found: Vec<_> =
        found.flat_map(|(module, uses)| uses.iter().map(move |path| (module, path))).collect();
    assert!(found.iter().any(|(_, path)| begins(path, "nix")), "{found:?}");
    let found: Vec<_> = found.into_iter().filter(|(_, path)| does_io(path)).collect();
    assert!(found.is_empty(), "{found:#?}");
}
