"""Names by which columns of times, clients and labels are known."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shoal.producers.column_types import Kind
from shoal.producers.features import NUMBERED, unit_of
from shoal.producers.files.times import without_zone

_THINGS = "dev|device|host|sensor|station|machine|client|room|mote|user|site|node|engine"
# The same words in French, Spanish, Portuguese, Italian, Dutch, Polish and Russian.
_THINGS_ELSEWHERE = (
    "appareil|capteur|équipement|salle|bâtiment|atelier|ligne|poste|"
    "dispositivo|equipo|máquina|estación|sala|edificio|línea|planta|ubicación|"
    "equipamento|estação|linha|prédio|"
    "macchina|sensore|stazione|impianto|linea|edificio|"
    "apparaat|toestel|ruimte|locatie|gebouw|"
    "urządzenie|czujnik|maszyna|stacja|"
    "устройство|датчик|станция|прибор|машина|объект"
)
# Chinese, Japanese and Korean, which write no space before "number" and "name".
_THINGS_IN_SIGNS = (
    "(设备|設備|装置|機器|机器|机台|传感器|站点|站|测点|房间|车间|デバイス|センサー|장비|설비|기기|센서)"
    "(编号|编码|名称|名|号|番号|id|번호|이름)?"
)
NAMES: Mapping[Kind, re.Pattern[str]] = {
    "time": re.compile(
        r"((received|reported|recorded|measured|event|sample|mess|log|obs|utc|local)[_ -]?)?"
        r"(date[_ -]?time|date|time|datum|zeit)([_ -]?(utc|local|cet|stamp|ms|ns|s))?|"
        r"timestamp([_ -]?(utc|local|ms|us|ns|s|sec|seconds|millis))?|date[_ -]?time|uhrzeit|"
        r"zeitstempel|zeitpunkt|time[_ ]?string|"
        r"datum[ /_-]+(uhr)?zeit|date[ /_-]+time|tijd(stip)?|tidspunkt|"
        r"ts|epoch|heure|fecha|hora|horodatage|last[_ -]?seen|"
        r"时间|時間|日時|日期|采集时间|記録時間|일시|시간|날짜|"
        r"дата|время|дата[ /]?(и )?время|tarih|czas|"
        r"datum a čas|data[ /_-]+(e |i )?(hora|ora|godzina)|fecha[ /_-]+(y )?hora|dato|"
        r"((last|date)[_ -]?)?(updated?|changed|created|measured|received|sampled|recorded|sent)"
        r"[_ -]?(at|on|time)|yyyy[_-]?mm[_-]?dd([_ -]?(hh([_:]?mm)?)?)?"
    ),
    "client": re.compile(
        rf"({_THINGS})([_ -]?(id|name|no|nr))?|unit[_ -]?(id|name|no|nr|number)|"
        r"(dev|device)[_ -]?(eui|addr)|host[_ -]?name|id|eui|mac([_ -]?addr(ess)?)?|imei|"
        r"serial([_ -]?(no|nr|number))?|"
        r"plant|location|place|house|building|hall|line|area|"
        r"raum|ger(ä|ae)t|anlage|standort|werk|maschine|halle|linie|bereich|"
        rf"({_THINGS_ELSEWHERE})([_ -]?(id|n°|nº|no|nr|номер))?|{_THINGS_IN_SIGNS}|"
        r"src|source[_ -]?(id|name)"
    ),
    "label": re.compile(r"label|class|target|klasse|y|changepoint|anomaly"),
}
"""names of columns, in lower case"""


def is_named(kind: Kind, name: str) -> bool:
    """Whether a column of that name, or a field at the end of that path, is of this kind."""
    spaced = " ".join(name.replace('"', "").split())
    bare, _ = unit_of(NUMBERED.sub("", spaced))
    if kind == "time":
        bare = without_zone(bare)
    parts = bare.split(".")
    # The last part of a path, or the last few: device.id is named as a client by both.
    for first in range(len(parts)):
        end = "_".join(parts[first:]).lower().strip("# _")
        if NAMES[kind].fullmatch(end):
            return True
    return False


def end_of(path: str) -> str:
    """The last part of a name of a column or of a path, in lower case."""
    return path.replace('"', "").rpartition(".")[2].lower().strip("# _")
