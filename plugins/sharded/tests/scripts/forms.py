import json

from forms_head import check, found, in_dict, in_list, parameters_alone, without_forward, wrapped

for make in (in_dict, in_list, without_forward, parameters_alone, wrapped):
    check(make.__name__, make)
print(json.dumps(found))
