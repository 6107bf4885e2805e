//! Types of an expression: walks the parsed tree once, refuses what has no meaning here, and builds the program.
//!
//! CEL's own overloads, with two rules beside them: a literal `int` in a comparison with a `uint` or `double` is read as
//! one of those, and `session.headers` is a map that is read with a literal key.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};

use super::{
    MAX_DEPTH, MAX_LIST, MAX_STEPS,
    build::{Builder, Constant, Operand, TooLarge},
    error::{ExpressionError, FaultKind},
    inputs::{INPUTS, Input, InputFacts, Presence, Scope, ValueType},
    parse::Parsed,
    program::{Arithmetic, Op, Relation, TextSource},
};

/// The map of headers.
const HEADERS: &str = "session.headers";

pub(super) struct Checker<'a> {
    pub text: &'a str,
    pub parsed: &'a Parsed,
    pub builder: Builder,
    /// Whether all candidates are known when the expression is evaluated.
    pub folds: bool,
    /// Inputs that are read or tested.
    pub used: Vec<Input>,
}

type Checked = Result<Operand, ExpressionError>;

impl<'a> Checker<'a> {
    pub(super) fn error(&self, at: usize, message: impl Into<String>) -> ExpressionError {
        ExpressionError::at(self.text, at, message)
    }

    pub(super) fn laid_out(&self, at: usize, built: Result<Operand, TooLarge>) -> Checked {
        built.map_err(|TooLarge| self.error(at, format!("more than {MAX_STEPS} steps")))
    }

    pub(super) fn expression(&mut self, expr: &'a IdedExpr, depth: usize) -> Checked {
        let at = self.parsed.offset(expr);
        if depth > MAX_DEPTH {
            return Err(self.error(at, format!("more than {MAX_DEPTH} levels of operators and calls")));
        }
        match &expr.expr {
            Expr::Literal(literal) => self.literal(literal, at),
            Expr::Ident(_) => self.name(expr),
            Expr::Select(select) if select.test => {
                let start = self.parsed.start(&select.operand);
                let Some(path) = path(&select.operand) else { return Err(self.error(start, "has() takes a name")) };
                self.presence(&format!("{path}.{}", select.field), start)
            }
            Expr::Select(_) => self.name(expr),
            Expr::Call(call) => self.call(call, at, depth),
            Expr::Comprehension(_) => Err(self
                .error(at, "all, exists, exists_one, map and filter are not supported: there is nothing to iterate")),
            Expr::List(_) => Err(self.error(at, "a list can only be the right side of `in`")),
            Expr::Map(_) | Expr::Struct(_) => Err(self.error(at, "maps and messages are not supported")),
            Expr::Unspecified => Err(self.error(at, "the expression is incomplete")),
        }
    }

    fn literal(&mut self, literal: &LiteralValue, at: usize) -> Checked {
        let built = match literal {
            LiteralValue::Boolean(value) => self.builder.constant(Constant::Bool(*value.inner())),
            LiteralValue::Int(value) => self.builder.constant(Constant::Int(*value.inner())),
            LiteralValue::UInt(value) => self.builder.constant(Constant::UInt(*value.inner())),
            LiteralValue::Double(value) => self.builder.constant(Constant::Double(*value.inner())),
            LiteralValue::String(value) => self.builder.text(value.inner()),
            LiteralValue::Null => return Err(self.error(at, "null is not supported; test for presence with has()")),
            LiteralValue::Bytes(_) => return Err(self.error(at, "bytes are not supported")),
        };
        self.laid_out(at, built)
    }

    /// The input that a name means.
    fn input(&self, name: &str, at: usize) -> Result<&'static InputFacts, ExpressionError> {
        let Some(facts) = Input::named(name) else { return Err(self.error(at, unknown(name))) };
        if facts.scope == Scope::Candidates && !self.folds {
            let message = format!("`{name}` is known to scorers only: filters see one candidate at a time");
            return Err(self.error(at, message));
        }
        Ok(facts)
    }

    fn name(&mut self, expr: &'a IdedExpr) -> Checked {
        let at = self.parsed.start(expr);
        let Some(name) = path(expr) else {
            return Err(self.error(self.parsed.offset(expr), "only names have fields"));
        };
        let built = if let Some(header) = name.strip_prefix("session.headers.") {
            self.builder.load_header(header, at)
        } else {
            let input = self.input(&name, at)?.input;
            self.used.push(input);
            self.builder.load(input, at)
        };
        self.laid_out(at, built)
    }

    /// `has(name)`.
    fn presence(&mut self, name: &str, at: usize) -> Checked {
        let built = if let Some(header) = name.strip_prefix("session.headers.") {
            let source = self.builder.source(TextSource::Header(header.into()));
            self.builder.step(Op::HeaderPresent(source), ValueType::Bool, Scope::Request, &[], &[], at)
        } else {
            let facts = self.input(name, at)?;
            match facts.presence {
                Presence::Always => self.builder.constant(Constant::Bool(true)),
                Presence::Maybe => {
                    self.used.push(facts.input);
                    self.builder.step(Op::Present(facts.input), ValueType::Bool, facts.scope, &[], &[], at)
                }
            }
        };
        self.laid_out(at, built)
    }

    fn call(&mut self, call: &'a CallExpr, at: usize, depth: usize) -> Checked {
        let args = call.args.as_slice();
        match (call.func_name.as_str(), args) {
            (operators::CONDITIONAL, [condition, then, otherwise]) => {
                self.conditional([condition, then, otherwise], at, depth)
            }
            (operators::LOGICAL_AND, [a, b]) => self.logic([a, b], Op::And, "&&", at, depth),
            (operators::LOGICAL_OR, [a, b]) => self.logic([a, b], Op::Or, "||", at, depth),
            (operators::LOGICAL_NOT, [a]) => {
                let operand = self.of_type(a, ValueType::Bool, "`!`", depth)?;
                self.compute(Op::Not(operand.register), ValueType::Bool, &[operand], &[], at)
            }
            (operators::NEGATE, [a]) => self.negate(a, at, depth),
            (operators::ADD, [a, b]) => self.arithmetic([a, b], Arithmetic::Add, "+", at, depth),
            (operators::SUBSTRACT, [a, b]) => self.arithmetic([a, b], Arithmetic::Subtract, "-", at, depth),
            (operators::MULTIPLY, [a, b]) => self.arithmetic([a, b], Arithmetic::Multiply, "*", at, depth),
            (operators::DIVIDE, [a, b]) => self.arithmetic([a, b], Arithmetic::Divide, "/", at, depth),
            (operators::MODULO, [a, b]) => self.arithmetic([a, b], Arithmetic::Remainder, "%", at, depth),
            (operators::EQUALS, [a, b]) => self.comparison([a, b], Relation::Equal, "==", at, depth),
            (operators::NOT_EQUALS, [a, b]) => self.comparison([a, b], Relation::NotEqual, "!=", at, depth),
            (operators::LESS, [a, b]) => self.comparison([a, b], Relation::Less, "<", at, depth),
            (operators::LESS_EQUALS, [a, b]) => self.comparison([a, b], Relation::LessOrEqual, "<=", at, depth),
            (operators::GREATER, [a, b]) => self.comparison([a, b], Relation::Greater, ">", at, depth),
            (operators::GREATER_EQUALS, [a, b]) => self.comparison([a, b], Relation::GreaterOrEqual, ">=", at, depth),
            (operators::IN, [a, list]) => self.membership(a, list, at, depth),
            (operators::INDEX, [map, key]) => self.header(map, key, at),
            _ => self.function(call, at, depth),
        }
    }

    /// Checks operands in order, one level down.
    pub(super) fn operand(&mut self, expr: &'a IdedExpr, depth: usize) -> Checked {
        self.expression(expr, depth + 1)
    }

    fn of_type(&mut self, expr: &'a IdedExpr, wanted: ValueType, what: &str, depth: usize) -> Checked {
        let operand = self.operand(expr, depth)?;
        if operand.value == wanted {
            return Ok(operand);
        }
        let message = format!("{what} takes {}, not {}", wanted.name(), operand.value.name());
        Err(self.error(self.parsed.start(expr), message))
    }

    /// Lays a step out; its scope is the widest of its operands'.
    pub(super) fn compute(
        &mut self,
        op: Op,
        value: ValueType,
        operands: &[Operand],
        raises: &[FaultKind],
        at: usize,
    ) -> Checked {
        let built = self.builder.step(op, value, Scope::Request, operands, raises, at);
        self.laid_out(at, built)
    }

    fn logic(
        &mut self,
        [a, b]: [&'a IdedExpr; 2],
        op: fn(u16, u16) -> Op,
        symbol: &str,
        at: usize,
        depth: usize,
    ) -> Checked {
        let what = format!("`{symbol}`");
        let a = self.of_type(a, ValueType::Bool, &what, depth)?;
        let b = self.of_type(b, ValueType::Bool, &what, depth)?;
        self.compute(op(a.register, b.register), ValueType::Bool, &[a, b], &[], at)
    }

    fn conditional(&mut self, [condition, then, otherwise]: [&'a IdedExpr; 3], at: usize, depth: usize) -> Checked {
        let c = self.of_type(condition, ValueType::Bool, "the condition of `? :`", depth)?;
        let a = self.operand(then, depth)?;
        let b = self.operand(otherwise, depth)?;
        if a.value != b.value {
            let message =
                format!("`? :` chooses between {} and {}; both must be of one type", a.value.name(), b.value.name());
            return Err(self.error(at, message));
        }
        self.compute(Op::Select(a.value, c.register, a.register, b.register), a.value, &[c, a, b], &[], at)
    }

    fn comparison(
        &mut self,
        [a, b]: [&'a IdedExpr; 2],
        relation: Relation,
        symbol: &str,
        at: usize,
        depth: usize,
    ) -> Checked {
        let (x, y) = match (int_literal(a), int_literal(b)) {
            (Some(value), None) => {
                let y = self.operand(b, depth)?;
                (self.adapted(value, y.value, self.parsed.offset(a))?, y)
            }
            (None, Some(value)) => {
                let x = self.operand(a, depth)?;
                (x, self.adapted(value, x.value, self.parsed.offset(b))?)
            }
            _ => (self.operand(a, depth)?, self.operand(b, depth)?),
        };
        self.related(x, y, relation, symbol, at)
    }

    /// A literal `int` as what it is compared with.
    fn adapted(&mut self, value: i64, wanted: ValueType, at: usize) -> Checked {
        // Up to 2^53 the double is exactly the literal.
        let exact = value.unsigned_abs() <= 1 << 53;
        let constant = match (wanted, u64::try_from(value)) {
            (ValueType::Double, _) if exact => Constant::Double(value as f64),
            (ValueType::UInt, Ok(value)) => Constant::UInt(value),
            _ => Constant::Int(value),
        };
        let built = self.builder.constant(constant);
        self.laid_out(at, built)
    }

    pub(super) fn related(&mut self, x: Operand, y: Operand, relation: Relation, symbol: &str, at: usize) -> Checked {
        if x.value != y.value {
            let message = format!(
                "`{symbol}` compares values of one type, not {} with {}{}",
                x.value.name(),
                y.value.name(),
                conversion_hint(x.value, y.value)
            );
            return Err(self.error(at, message));
        }
        if !x.value.is_number() && !matches!(relation, Relation::Equal | Relation::NotEqual) {
            return Err(self.error(at, format!("{} values have no order here; use `==` or `!=`", x.value.name())));
        }
        self.compute(Op::Compare(x.value, relation, x.register, y.register), ValueType::Bool, &[x, y], &[], at)
    }

    /// `value in [literals]`, as a chain of comparisons; or `"name" in session.headers`.
    fn membership(&mut self, value: &'a IdedExpr, list: &'a IdedExpr, at: usize, depth: usize) -> Checked {
        if path(list).as_deref() == Some(HEADERS) {
            let Some(name) = text_literal(value) else {
                return Err(self.error(at, "the name of a header must be a literal string"));
            };
            return self.presence(&format!("{HEADERS}.{}", name.to_ascii_lowercase()), at);
        }
        let Expr::List(list) = &list.expr else {
            return Err(self.error(at, "`in` takes a list of literals, or session.headers, on its right"));
        };
        if !(1..=MAX_LIST).contains(&list.elements.len()) || !list.optional_indices.is_empty() {
            return Err(self.error(at, format!("the list of `in` has 1 to {MAX_LIST} elements")));
        }
        let x = self.operand(value, depth)?;
        let mut found: Option<Operand> = None;
        for element in &list.elements {
            let here = self.parsed.start(element);
            if !matches!(element.expr, Expr::Literal(_)) {
                return Err(self.error(here, "a list may only hold literals"));
            }
            let y = match int_literal(element) {
                Some(literal) => self.adapted(literal, x.value, here)?,
                None => self.operand(element, depth)?,
            };
            let equal = self.related(x, y, Relation::Equal, "in", here)?;
            found = Some(match found {
                None => equal,
                Some(so_far) => {
                    let op = Op::Or(so_far.register, equal.register);
                    self.compute(op, ValueType::Bool, &[so_far, equal], &[], at)?
                }
            });
        }
        found.ok_or_else(|| self.error(at, "the list of `in` is empty"))
    }

    fn header(&mut self, map: &'a IdedExpr, key: &'a IdedExpr, at: usize) -> Checked {
        if path(map).as_deref() != Some(HEADERS) {
            return Err(self.error(at, "only session.headers can be indexed"));
        }
        let Some(name) = text_literal(key) else {
            return Err(self.error(at, "the name of a header must be a literal string"));
        };
        let built = self.builder.load_header(&name.to_ascii_lowercase(), at);
        self.laid_out(at, built)
    }
}

/// The dotted name that an expression spells.
fn path(expr: &IdedExpr) -> Option<String> {
    match &expr.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) if !select.test => Some(format!("{}.{}", path(&select.operand)?, select.field)),
        _ => None,
    }
}

fn int_literal(expr: &IdedExpr) -> Option<i64> {
    match &expr.expr {
        Expr::Literal(LiteralValue::Int(value)) => Some(*value.inner()),
        _ => None,
    }
}

fn text_literal(expr: &IdedExpr) -> Option<&str> {
    match &expr.expr {
        Expr::Literal(LiteralValue::String(value)) => Some(value.inner()),
        _ => None,
    }
}

/// What to write instead of a mix of numbers.
pub(super) fn conversion_hint(a: ValueType, b: ValueType) -> &'static str {
    if a.is_number() && b.is_number() { "; convert one with int(), uint() or double()" } else { "" }
}

/// The message for a name that does not exist: what its group has, or which groups there are.
fn unknown(name: &str) -> String {
    let group = name.split('.').next().unwrap_or(name);
    let of_group = |facts: &&InputFacts| facts.name.split('.').next() == Some(group);
    let mut fields: Vec<_> =
        INPUTS.iter().filter(of_group).filter_map(|facts| Some(facts.name.split_once('.')?.1)).collect();
    if group == "session" {
        fields.push("headers[\"name\"]");
    }
    if !fields.is_empty() {
        return format!("unknown name `{name}`; {group} has {}", fields.join(", "));
    }
    let mut groups: Vec<_> = INPUTS.iter().filter_map(|facts| facts.name.split('.').next()).collect();
    groups.dedup();
    format!("unknown name `{name}`; there are {}", groups.join(", "))
}
