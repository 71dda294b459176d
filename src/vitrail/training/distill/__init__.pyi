from .student import teach as teach, teacher_of as teacher_of
from .teacher import Teacher as Teacher, of_model as of_model, open_teacher as open_teacher
