# Splits tests into what the candidate must compute and how that is judged. Runs where no candidate does.
import ast
import builtins
import json
import sys


class Refused(Exception):
    pass


def bound(node):
    """Names that a statement binds."""
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            names.add(part.id)
        elif isinstance(part, ast.alias):
            names.add((part.asname or part.name).split(".")[0])
        elif isinstance(part, (ast.FunctionDef, ast.ClassDef)):
            names.add(part.name)
    return names


def loaded(node):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def root(node):
    """The name that a chain of calls, attributes and subscripts hangs on."""
    while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


class Take(ast.NodeTransformer):
    """Takes out every largest chain that hangs on a name of the candidate's."""

    def __init__(self, known, steps):
        self.known = known
        self.steps = steps
        self.uses = []
        self.local = set()

    def visit(self, node):
        if isinstance(node, (ast.Call, ast.Attribute, ast.Subscript, ast.Name)):
            name = root(node)
            if name is not None and name not in self.known and name not in self.local:
                if loaded(node) & self.local:
                    raise Refused("a call of the candidate depends on a comprehension's variable")
                self.steps.append({"eval": ast.unparse(node)})
                self.uses.append(len(self.steps) - 1)
                return ast.Name(f"_value_{len(self.steps) - 1}", ast.Load())
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp, ast.Lambda)):
            inner = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            inner |= {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
            before, self.local = self.local, self.local | inner
            node = super().generic_visit(node)
            self.local = before
            return node
        return super().generic_visit(node)


def split(text, entry):
    known = set(dir(builtins))
    preamble, steps, tests = [], [], []

    def statement(node):
        if isinstance(node, ast.Assert):
            take = Take(known, steps)
            tests.append({"expression": ast.unparse(ast.fix_missing_locations(take.visit(node.test))), "uses": take.uses})
        elif isinstance(node, ast.FunctionDef) and node.name == "check" and len(node.args.args) == 1:
            # HumanEval's shape: the entry point is the argument.
            name = node.args.args[0].arg
            for inner in node.body:
                for part in ast.walk(inner):
                    if isinstance(part, ast.Name) and part.id == name:
                        part.id = entry or name
                statement(inner)
        elif isinstance(node, ast.Expr) and root(node.value) == "check":
            pass
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            known.update(bound(node))
            preamble.append(ast.unparse(node))
            steps.append({"exec": ast.unparse(node), "ours": True})
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.FunctionDef, ast.ClassDef)):
            text = ast.unparse(node)
            if loaded(node) - known - bound(node):
                steps.append({"exec": text})
                known.difference_update(bound(node))
            else:
                steps.append({"exec": text, "ours": True})
                known.update(bound(node))
                preamble.append(text)
        elif isinstance(node, ast.Pass):
            pass
        else:
            line = ast.unparse(node).splitlines()[0]
            raise Refused(f"`{line}`: write tests as `assert CALL == VALUE`, one a line")

    for node in ast.parse(text).body:
        statement(node)
    if not tests:
        raise Refused("there is no assert")
    return {"preamble": preamble, "steps": needed(steps), "tests": tests}


def needed(steps):
    """What the candidate's calls do not need, an expected value for example, the candidate does not get."""
    names = set()
    for step in reversed(steps):
        tree = ast.parse(step.get("eval") or step["exec"])
        if step.pop("ours", False) and not bound(tree) & names:
            del step["exec"]
            continue
        names |= loaded(tree)
    return steps


job = json.load(sys.stdin)
try:
    answer = split(job["tests"], job.get("entry_point"))
except (Refused, SyntaxError, RecursionError) as error:
    answer = {"error": str(error)}
print(json.dumps(answer))
