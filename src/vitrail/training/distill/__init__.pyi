from .objective import teach as teach
from .request import HANDED as HANDED, Request as Request, teacher_of as teacher_of
from .teacher import Teacher as Teacher, of_model as of_model, open_teacher as open_teacher
