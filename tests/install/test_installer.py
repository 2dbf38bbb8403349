from pathlib import Path

import pytest

from gateway.install.installer import find_hidden_program, install_steps, removal_steps
from gateway.install.units import ServiceScope, program_of, same_unit, service_paths, shipped_units


def test_program_in_a_hidden_folder_is_found() -> None:
    assert "ProtectHome" in find_hidden_program(Path("/root/.local/bin/gatehouse"))
    assert find_hidden_program(Path("/opt/gatehouse/bin/gatehouse")) == ""


def test_system_service_includes_a_configuration_and_the_sandbox_units(tmp_path: Path) -> None:
    where = service_paths(ServiceScope.SYSTEM, tmp_path, tmp_path)
    steps = [step.description for step in install_steps(where, Path("/opt/g/bin/gatehouse"), shell_network=True)]
    paths = [*where.files.values(), where.shell_network, where.config]
    assert steps[:5] == [f"write {path}" for path in paths]
    where.shell_network.parent.mkdir(parents=True)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for step in removal_steps(where):
        if step.description.startswith("remove"):
            step.run()
    assert [path.name for path in where.units.iterdir()] == []
    assert where.config.exists()
    assert {path.name for path in paths} >= {"gatehouse-sandbox.socket", "gatehouse-sandbox.service"}


@pytest.mark.parametrize("scope", ServiceScope)
def test_command_path_is_escaped_for_systemd(scope: ServiceScope, tmp_path: Path) -> None:
    odd = Path("/opt/a b/100%/gatehouse")
    where = service_paths(scope, tmp_path)
    for path, unit in shipped_units(where, odd).items():
        assert program_of(unit, tmp_path) == (odd if path.suffix == ".service" else None)
        assert same_unit(unit, "# mine\n" + shipped_units(where)[path])


def test_units_of_the_debian_package_are_left_to_it(tmp_path: Path) -> None:
    unit = tmp_path / "usr/lib/systemd/system/gatehouse.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    where = service_paths(ServiceScope.SYSTEM, tmp_path, tmp_path)
    steps = [step.description for step in install_steps(where, Path("/opt/g/bin/gatehouse"), shell_network=True)]
    assert (where.unit, where.is_packaged) == (unit, True)
    # Only a drop-in of the administrator and the configuration.
    assert where.shell_network.is_relative_to(tmp_path / "etc/systemd/system")
    assert [step for step in steps if step.startswith("write")] == [
        f"write {where.shell_network}",
        f"write {where.config}",
    ]
